{{- define "paddlepool.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "paddlepool.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "paddlepool.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "paddlepool.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "paddlepool.selector" -}}
app.kubernetes.io/name: {{ include "paddlepool.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Of the pod of `helm test`, which the selector must not find. */}}
{{- define "paddlepool.testLabels" -}}
app.kubernetes.io/component: test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "paddlepool.labels" -}}
{{ include "paddlepool.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "paddlepool.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "paddlepool.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "paddlepool.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* Both autoscalers' steps: without them Kubernetes ends most replicas at once. */}}
{{- define "paddlepool.scaling" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - {type: Percent, value: 100, periodSeconds: 30}
    - {type: Pods, value: 2, periodSeconds: 30}
  selectPolicy: Max
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownStabilizationSeconds }}
  policies:
    - {type: Pods, value: 1, periodSeconds: 60}
{{- end -}}

{{/* "true" where a setting that is on or off is on, as the server reads it. */}}
{{- define "paddlepool.on" -}}
{{- has (lower (toString .)) (list "1" "on" "t" "true" "y" "yes") -}}
{{- end -}}

{{/* What both containers may do: nothing but run. */}}
{{- define "paddlepool.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

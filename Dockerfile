# The server's image. `docker build .` builds the server, `--target load` the load generator.
# deploy/release/build_image.sh builds it so that the same commit and base give the same layers.
ARG BASE_IMAGE=python:3.11-slim

# Every locked package, by hash, in an environment without pip and setuptools.
FROM ${BASE_IMAGE} AS locked
# If it is set, compiled modules do not depend on the time of their source.
ARG SOURCE_DATE_EPOCH
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements.lock ./
RUN python3 -m venv --without-pip /opt/paddlepool \
    && python3 -m pip --python /opt/paddlepool/bin/python install \
        --no-deps --require-hashes --only-binary=:all: --requirement requirements.lock
COPY deploy/container/keep.py deploy/container/

# The server with all engines and the readers of model sources and HEIC; without development tools, headers,
# tests, and the plugin of Paddle's own copy of OpenVINO, which no backend uses.
# deploy/container/size.py prints the size of each part.
FROM locked AS serve-environment
ARG SOURCE_DATE_EPOCH
COPY pyproject.toml setup.py README.md LICENSE ./
COPY app/ app/
COPY clients/python/ clients/python/
COPY examples/picture-classifier/ examples/picture-classifier/
RUN python3 -m pip --python /opt/paddlepool/bin/python install --quiet --no-deps . ./clients/python \
    && /opt/paddlepool/bin/python deploy/container/keep.py 'paddlepool[grpc,heic,onnx,otel,sources]' paddlepool-client > unneeded.txt \
    && cat unneeded.txt \
    && python3 -m pip --python /opt/paddlepool/bin/python uninstall --quiet --yes --requirement unneeded.txt \
    && for unneeded in paddle/include paddle/libs/libopenvino_intel_cpu_plugin.so \
            openvino/include onnx/backend/test onnxruntime/transformers; do \
        rm -rf /opt/paddlepool/lib/python3*/site-packages/"$unneeded"; done \
    && find /opt/paddlepool/lib -type d -name tests -prune -exec rm -rf {} +

# The image of the compose profile `load`: locust has a separate lock.
FROM ${BASE_IMAGE} AS load-environment
ARG SOURCE_DATE_EPOCH
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY loadtest/requirements.lock ./
RUN python3 -m venv --without-pip /opt/load \
    && python3 -m pip --python /opt/load/bin/python install \
        --require-hashes --only-binary=:all: --requirement requirements.lock

FROM ${BASE_IMAGE} AS load
COPY --from=load-environment /opt/load /opt/load
COPY loadtest/ /srv/paddlepool/loadtest/
RUN find / -xdev -type f -perm /6000 -exec chmod a-s {} +
ENV PATH=/opt/load/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
WORKDIR /srv/paddlepool
USER 10001:10001
ENTRYPOINT ["locust", "--locustfile", "loadtest/locustfile.py"]

FROM ${BASE_IMAGE} AS serve
LABEL org.opencontainers.image.title="Paddlepool" \
      org.opencontainers.image.description="A model server around Paddle Inference" \
      org.opencontainers.image.licenses="Apache-2.0"
# Paddle's libraries link to GNU OpenMP, which neither its wheel nor a slim base image contains. The
# version is not pinned: the build would fail after the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/apt/*.bin /var/cache/ldconfig/aux-cache \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} +
COPY --from=serve-environment /opt/paddlepool /opt/paddlepool
COPY model_repo/ /srv/paddlepool/model_repo/
# HOME is the tmpfs: importing Paddle creates a cache directory in it, the root is read-only, and
# user 10001 has no home.
ENV PATH=/opt/paddlepool/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    PADDLEPOOL_HOST=0.0.0.0 \
    PADDLEPOOL_PORT=8000 \
    PADDLEPOOL_MODEL_REPOSITORY=/srv/paddlepool/model_repo
WORKDIR /srv/paddlepool
# Downloads the official weights and the models that read text with the base image's pip. If they are
# unavailable, the build prints one line for each, and the image serves the preview and reads no text.
RUN paddlepool pull u2netp --if-possible && paddlepool pull ocr --if-possible && rm -rf /tmp/.cache
# Fail if a file has a setuid or setgid bit, which could change the user of a process.
RUN test -z "$(find / -xdev -type f -perm /6000)"
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:' + os.environ['PADDLEPOOL_PORT'] + '/v2/health/ready', timeout=4)"]
ENTRYPOINT ["paddlepool"]
CMD ["serve"]

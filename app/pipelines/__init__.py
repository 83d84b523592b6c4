"""The tasks this server can do: one line each, naming the package that does it.

Such a package exports `build(info, workers) -> Pipeline`, called once per loaded model version,
and `endpoints() -> APIRouter`, called by `create_app`. It may export `comparison(info)`, which
gives comparisons of predictors their inputs and a measure of agreement (app.comparison.tasks);
`agreement(info)`, that measure alone, for the groups compared beside the service (app.live); and
`quality(info, source)`, which measures what a model is worth (app.quality.ports).
Nothing else in `app` knows a task by name.
"""

from __future__ import annotations

PIPELINES: dict[str, str] = {
    "segment": "app.pipelines.segment",
    "sentiment": "app.pipelines.sentiment",
}

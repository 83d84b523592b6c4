"""A bare FastAPI application, for with_without.py: its routes compute nothing."""

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Texts(BaseModel):
    """What `/sentiment` reads of a request with one text."""

    inputs: str
    parameters: dict[str, str]


class LabelScore(BaseModel):
    label: str
    label_zh: str
    score: float


LABELS = [LabelScore(label=f"label{number}", label_zh="标签", score=0.125) for number in range(6)]


@app.get("/v2/health/live")
async def live() -> dict[str, bool]:
    return {"live": True}


@app.post("/sentiment")
async def sentiment(_: Texts) -> list[LabelScore]:
    """Returns as many labels as the emotion model has."""
    return LABELS

"""A bare FastAPI application, for with_without.py: one route, which computes nothing."""

from fastapi import FastAPI

app = FastAPI()


@app.get("/v2/health/live")
async def live() -> dict[str, bool]:
    return {"live": True}

"""ASGI layers and checks that apply to every request, independent of its route."""

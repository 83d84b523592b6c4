"""Steps that apply to every request, independent of its route."""

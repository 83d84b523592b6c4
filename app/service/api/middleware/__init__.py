"""What every request passes, whatever its route."""

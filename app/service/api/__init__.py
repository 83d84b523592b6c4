"""HTTP only: routes, middleware, and the one table from errors to status codes."""

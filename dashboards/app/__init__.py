"""The dashboard: a Dash app whose pages draw the package's figures. ``forerun dash`` serves it."""

from dashboards.app.server import create_app, serve_dashboard

__all__ = ["create_app", "serve_dashboard"]

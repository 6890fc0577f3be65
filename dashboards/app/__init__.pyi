from dashboards.app.server import create_app as create_app
from dashboards.app.server import serve_dashboard as serve_dashboard

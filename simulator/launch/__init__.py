"""Launch lines and manifests of engines: read as scenarios, from the tables by which they are also written."""

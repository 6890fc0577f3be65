"""The engine in wall-clock time behind an OpenAI endpoint; a live engine's metrics beside its twin."""

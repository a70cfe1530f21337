"""Moving bytes between nodes: into slots by `fetch`, as small messages by links; peers prove the job secret first."""

"""Fleet of replicas: pools, routing, admission, the transfer of KV, failures, scaling."""

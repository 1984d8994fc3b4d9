"""Events, deliveries, signatures, routes and retries: rules that the other rooms apply."""

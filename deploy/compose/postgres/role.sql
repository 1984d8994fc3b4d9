-- Run once, when compose.yaml's database is made; docs/deployment.md, "PostgreSQL", has the same.
\set password `cat /run/secrets/database-password`

CREATE ROLE relay LOGIN PASSWORD :'password';
CREATE SCHEMA relay AUTHORIZATION relay;
ALTER ROLE relay SET idle_in_transaction_session_timeout = '5s';
ALTER ROLE relay SET lock_timeout = '5s';

-- The relay's password shall not open the administrator's account too, which is left with the
-- container's own socket: docker compose exec postgres psql relay
ALTER ROLE postgres PASSWORD NULL;

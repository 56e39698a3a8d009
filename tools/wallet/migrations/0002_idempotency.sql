-- contract: older versions would make a transfer again whose key was used

-- Keys that callers gave to transfers: the same key never moves money twice.
CREATE TABLE idempotency_keys (
    key            TEXT PRIMARY KEY,
    transaction_id TEXT NOT NULL REFERENCES transactions (id)
) STRICT;

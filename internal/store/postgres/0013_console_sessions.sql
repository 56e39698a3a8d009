-- expand: older versions keep console sessions in memory and ignore the tables

-- The sessions of the console. id is the SHA-256 of the cookie's value, credential that of
-- the token that was shown ('' = the person signed in at the provider), sid the provider's
-- name of its session ('' = it gave none), principal who signed in. Times are nanoseconds
-- since 1970: credential_until is when the credential ends (0 = not by itself), until when
-- the session ends, seen when it was used last. mac authenticates the row but for seen.
CREATE TABLE console_sessions (
	id               TEXT PRIMARY KEY,
	subject          TEXT NOT NULL,
	credential       TEXT NOT NULL,
	sid              TEXT NOT NULL,
	principal        TEXT NOT NULL,
	credential_until BIGINT NOT NULL,
	until            BIGINT NOT NULL,
	seen             BIGINT NOT NULL,
	mac              TEXT NOT NULL
);

-- The logout tokens of the provider that ended sessions, by the SHA-256 of their jti, until
-- they are too old to be accepted: each is accepted once.
CREATE TABLE console_logouts (
	jti   TEXT PRIMARY KEY,
	until BIGINT NOT NULL
);

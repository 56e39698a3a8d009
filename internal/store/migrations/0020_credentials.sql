-- expand: older versions have no credentials of people, and ignore the tables

-- The connections of people to servers (registry/credential.Grants). The person is
-- person_issuer, tenant and subject; all of them '' is toolgate itself. issuer is the
-- authorization server, account, scopes and wanted (those that the server asked for since) JSON
-- or text for lists of grants alone: what requests are made with is sealed, encrypted and bound
-- to the server and the person by a key of the key directory. state is live, renewing (its
-- refresh token may have been used, by holder, who has to be done before lease) or ended, for
-- reason. version grows with each change. Times are nanoseconds since 1970.
CREATE TABLE credential_grants (
	id            TEXT PRIMARY KEY,
	server        TEXT NOT NULL,
	person_issuer TEXT NOT NULL,
	tenant        TEXT NOT NULL,
	subject       TEXT NOT NULL,
	issuer        TEXT NOT NULL,
	account       TEXT NOT NULL,
	scopes        TEXT NOT NULL,
	wanted        TEXT NOT NULL DEFAULT '',
	created       INTEGER NOT NULL,
	until         INTEGER NOT NULL,
	state         TEXT NOT NULL,
	reason        TEXT NOT NULL DEFAULT '',
	holder        TEXT NOT NULL DEFAULT '',
	lease         INTEGER NOT NULL DEFAULT 0,
	version       INTEGER NOT NULL,
	sealed        BLOB NOT NULL,
	UNIQUE (server, person_issuer, tenant, subject)
) STRICT;

-- Who has gone to an authorization server and not come back: state is the SHA-256 of the
-- parameter, the person who began. It counts once, before until.
CREATE TABLE credential_starts (
	state         TEXT PRIMARY KEY,
	server        TEXT NOT NULL,
	person_issuer TEXT NOT NULL,
	tenant        TEXT NOT NULL,
	subject       TEXT NOT NULL,
	until         INTEGER NOT NULL,
	sealed        BLOB NOT NULL
) STRICT;

-- What toolgate is called at authorization servers where it registered itself (RFC 7591), by
-- issuer and redirect address. until is when the secret ends, 0 = not by itself.
CREATE TABLE credential_clients (
	issuer   TEXT NOT NULL,
	redirect TEXT NOT NULL,
	until    INTEGER NOT NULL,
	sealed   BLOB NOT NULL,
	PRIMARY KEY (issuer, redirect)
) STRICT;

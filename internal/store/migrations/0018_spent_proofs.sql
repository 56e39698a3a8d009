-- expand: older versions accept no tokens that are bound to keys, and ignore the table

-- The proofs of DPoP that were shown (policy/identity.Proofs): the SHA-256 of the thumbprint of
-- the key and the jti, and until when the proof is remembered, nanoseconds since 1970.
CREATE TABLE spent_proofs (
	id    BLOB    NOT NULL PRIMARY KEY,
	until INTEGER NOT NULL
) STRICT;

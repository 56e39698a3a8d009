-- expand: older versions ignore the new column

-- When a revoked token ends by itself, by the time in the token, nanoseconds since 1970;
-- 0 = not known. Rows of tokens that ended long ago are removed.
ALTER TABLE revoked_tokens ADD COLUMN until BIGINT NOT NULL DEFAULT 0;

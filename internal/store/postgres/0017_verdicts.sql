-- expand: older versions change pins without the new column, whose values name the definitions that they are about

-- What people have said of the definitions of a pin, as JSON ('' = nothing): who accepted the one, and
-- why the offered one is refused.
ALTER TABLE pins ADD COLUMN verdicts TEXT NOT NULL DEFAULT '';
ALTER TABLE pin_variants ADD COLUMN verdicts TEXT NOT NULL DEFAULT '';

-- expand: older versions ignore the new columns

-- When the replica that wrote a checkpoint was retired, nanoseconds since 1970, and by whom;
-- 0 = it was not.
ALTER TABLE checkpoints
  ADD COLUMN retired    BIGINT NOT NULL DEFAULT 0,
  ADD COLUMN retired_by TEXT   NOT NULL DEFAULT '';

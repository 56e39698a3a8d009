-- contract: older versions would take a ticket with tags for one that toolgate did not write

-- What the caller of a held job claims of it, a JSON object of texts; '' = nothing. A
-- ticket's MAC is over it, too.
ALTER TABLE approvals ADD COLUMN tags TEXT NOT NULL DEFAULT '';

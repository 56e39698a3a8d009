-- contract: older versions would leave the lists of a server that is reached in another way

-- What each server listed last apart from tools: an object with the arrays prompts,
-- resources and resourceTemplates, byte for byte. NULL before it was listed.
ALTER TABLE listings ADD COLUMN lists BLOB;

-- expand: the first table

-- What the images of a day (UTC) may have cost, by estimate, in US dollars.
CREATE TABLE spent (
    day     TEXT PRIMARY KEY,
    dollars REAL NOT NULL
) STRICT;

package app

import (
	"encoding/json"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients/clientfile"
	"github.com/toolgate/toolgate/console"
)

// entries returns the address of the agents' listener, and what enters it into the file of each client.
// The entries hold no token: they name a variable.
func (d *desk) entries() (address string, all []console.Client) {
	cfg := d.Config()
	at := clients.Address{URL: AgentsURL(cfg) + "/mcp", Command: "toolgate"}
	if !admitsLocal(cfg) && len(cfg.Identity.JWT) == 0 { // at an issuer, the client signs in by itself
		at.Token = "${TOOLGATE_TOKEN}"
	}
	for _, c := range clients.Clients() {
		entry, err := c.Entry(at)
		if err != nil {
			continue // it calls no servers
		}
		var text []byte
		value, err := json.Marshal(entry)
		if err == nil {
			text, err = clientfile.Apply(c.Format, nil, clientfile.Edit{Container: c.Container, Key: c.List, Name: "toolgate", Value: value})
		}
		if err != nil {
			d.log.Warn("writing the entry of a client", "client", c.ID, "error", err)
			continue
		}
		all = append(all, console.Client{ID: c.ID, Name: c.Name, Text: string(text)})
	}
	return at.URL, all
}

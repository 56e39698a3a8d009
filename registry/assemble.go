package registry

// NewCatalogue assembles a catalogue from tools that are already made, servers
// in the order given and tools in theirs. Of two tools with one exposed name
// the later one is quarantined. It is for those who judge against a catalogue
// without running upstreams.
func NewCatalogue(servers []string, tools ...*Tool) *Catalogue {
	of := make(map[string][]*Tool, len(servers))
	for _, t := range tools {
		of[t.Server] = append(of[t.Server], t)
	}
	return catalogueOf(servers, of, nil)
}

package app

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/registry/config"
)

// Listeners are the two addresses that Run serves.
type Listeners struct {
	Agents net.Listener
	People net.Listener
}

// Listen opens the listeners that cfg names.
func Listen(cfg *config.Config) (*Listeners, error) {
	agents, err := listenOn(cfg.Listen)
	if err != nil {
		return nil, err
	}
	people, err := listenOn(cfg.Admin)
	if err != nil {
		return nil, errors.Join(err, agents.Close())
	}
	return &Listeners{Agents: agents, People: people}, nil
}

// Close closes both listeners. Run does so too.
func (l *Listeners) Close() {
	_ = l.Agents.Close()
	_ = l.People.Close()
}

// Bound returns cfg with the ports that the listeners got where cfg leaves the
// port open, so that addresses made from cfg are right.
func (l *Listeners) Bound(cfg *config.Config) *config.Config {
	c := *cfg
	for address, l := range map[*string]net.Listener{&c.Listen: l.Agents, &c.Admin: l.People} {
		if host, port, err := net.SplitHostPort(*address); err == nil && strings.Trim(port, "0") == "" {
			*address = net.JoinHostPort(host, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
		}
	}
	return &c
}

func listenOn(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w\nhint: is another toolgate serving there? choose another address with --listen or --admin", address, err)
	}
	return l, nil
}

// hostsOf returns the host names that a listener answers to.
func hostsOf(address string) []string {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return nil
	}
	return []string{host}
}

// newServer bounds how long a client may take to send a request. Streams are
// long, so there is no bound on an answer.
func newServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
}

package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
)

// expiresSoon is how long before the end of a certificate it is warned of.
const expiresSoon = 14 * 24 * time.Hour

// certificate is what one listener shows its clients, and whose certificates it wants
// of them. It is read from files, and again when they change; files that cannot be used
// change nothing. It is safe for concurrent use.
type certificate struct {
	key   string // of the configuration: toolgate.tls, toolgate.admin_tls or toolgate.replica.tls
	files config.TLS

	mu      sync.Mutex // protects the fields below
	serving *tls.Config
	fault   error // why the files cannot be used now
}

// openCertificates reads the certificates of the listeners that have one. The Listeners that
// it returns are not open yet.
func openCertificates(cfg *config.Config) (*Listeners, error) {
	l := &Listeners{}
	for _, of := range []struct {
		key   string
		files *config.TLS
		to    **certificate
	}{{"toolgate.tls", cfg.TLS, &l.agents}, {"toolgate.admin_tls", cfg.AdminTLS, &l.people}, {"toolgate.replica.tls", cfg.Replica.Files(), &l.replicas}} {
		if of.files == nil {
			continue
		}
		*of.to = &certificate{key: of.key, files: *of.files}
		if _, err := (*of.to).renew(); err != nil {
			return l, err
		}
	}
	return l, nil
}

// read returns what the files say. A client whose authority was removed must not
// resume an old session, so there are none where clients show certificates.
//
// Only HTTP/1.1 is offered: the bounds of a listener are those of its connections, and
// one connection of HTTP/2 carries any number of requests.
func (c *certificate) read() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return nil, fmt.Errorf("%s: reading certificate: %w\nhint: cert and key are PEM files of one certificate", c.key, err)
	}
	s := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if c.files.ClientCA == "" {
		return s, nil
	}
	text, err := os.ReadFile(c.files.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("%s: reading authorities of clients: %w", c.key, err)
	}
	s.ClientCAs, s.ClientAuth, s.SessionTicketsDisabled = x509.NewCertPool(), tls.RequireAndVerifyClientCert, true
	if !s.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: reading authorities of clients: %s has no certificate in PEM", c.key, c.files.ClientCA)
	}
	return s, nil
}

// renew reads the files again and reports whether they say something else than before.
func (c *certificate) renew() (changed bool, err error) {
	next, err := c.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = err
	if err != nil || c.serving != nil && reflect.DeepEqual(c.serving.Certificates[0].Certificate, next.Certificates[0].Certificate) &&
		c.serving.ClientCAs.Equal(next.ClientCAs) {
		return false, err
	}
	c.serving = next
	return true, nil
}

// current returns the configuration for the next connection.
func (c *certificate) current() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.serving
}

// findings warns of files that cannot be used, and of a certificate that clients
// refuse, or will soon.
func (c *certificate) findings(now time.Time) (found []Finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault != nil {
		message, hint, _ := strings.Cut(strings.TrimPrefix(c.fault.Error(), c.key+": "), "\nhint: ")
		found = append(found, warning("certificate", c.key, "the files cannot be used, the certificate read before stays: "+message, hint))
	}
	leaf := c.serving.Certificates[0].Leaf
	until, hint := leaf.NotAfter.UTC().Format(time.RFC3339), "replace the files of cert and key: toolgate reads them again"
	switch left := leaf.NotAfter.Sub(now); {
	case left <= 0:
		found = append(found, warning("certificate", c.key, "the certificate expired at "+until+": clients refuse it", hint))
	case left < expiresSoon:
		found = append(found, warning("certificate", c.key, "the certificate expires at "+until, hint))
	case now.Before(leaf.NotBefore):
		found = append(found, warning("certificate", c.key, "the certificate is not valid before "+leaf.NotBefore.UTC().Format(time.RFC3339), "is the clock right?"))
	}
	return found
}

// certificates returns those of l, none for a nil l.
func (l *Listeners) certificates() (all []*certificate) {
	if l != nil {
		all = slices.DeleteFunc([]*certificate{l.agents, l.people, l.replicas}, func(c *certificate) bool { return c == nil })
	}
	return all
}

// findings warns of the certificates of l.
func (l *Listeners) findings(now time.Time) (found []Finding) {
	for _, c := range l.certificates() {
		found = append(found, c.findings(now)...)
	}
	return found
}

// CheckFiles reads the certificates of cfg and returns warnings about them. The error is a
// *ConfigError when one cannot be used, or when everybody on this machine can change the
// configuration, the state or a key.
func CheckFiles(cfg *config.Config) ([]Finding, error) {
	_, refused := fileModes(cfg)
	l, err := openCertificates(cfg)
	if cfg.Store != "" {
		_, unread := store.PlainHosts(cfg.Store)
		err = errors.Join(err, unread)
	}
	if err := errors.Join(refused, err); err != nil {
		return nil, configError(err)
	}
	return l.findings(time.Now()), nil
}

// plainListeners warns of listeners that other machines reach over plain HTTP.
func plainListeners(cfg *config.Config) (found []Finding) {
	for _, l := range []struct {
		key, secure, address string
		plain                bool
	}{{"listen", "tls", cfg.Listen, cfg.TLS == nil}, {"admin", "admin_tls", cfg.Admin, cfg.AdminTLS == nil}} {
		if host, _, _ := net.SplitHostPort(l.address); l.plain && !guard.Loopback(host) {
			found = append(found, warning("plain-http", "toolgate."+l.key, "is insecure: "+l.address+" speaks plain HTTP, so whoever is on the way can read and change calls, answers and tokens",
				"set toolgate."+l.secure+", or listen on 127.0.0.1 behind a proxy that speaks TLS"))
		}
	}
	return found
}

// httpLog receives what net/http says about connections. Anybody can cause failed
// handshakes, so they are counted and only logged for debugging.
type httpLog struct {
	log    hclog.Logger
	failed prometheus.Counter
}

// Write implements io.Writer.
func (l httpLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if strings.Contains(text, "TLS handshake error") {
		l.failed.Inc()
		l.log.Debug(text)
	} else {
		l.log.Warn(text)
	}
	return len(line), nil
}

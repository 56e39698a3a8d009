package app

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/internal/testkit/authority"
	"github.com/toolgate/toolgate/registry/config"
)

// A collector that asks for a certificate gets the configured one, and a renewed one
// without a restart.
func TestTelemetryCertificate(t *testing.T) {
	dir := t.TempDir()
	root, err := authority.New("collectors")
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name, host string) {
		if err := root.Write(filepath.Join(dir, name), time.Hour, host); err != nil {
			t.Fatal(err)
		}
	}
	issue("collector", "127.0.0.1")
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "collector.crt"), filepath.Join(dir, "collector.key"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(root.PEM())
	seen := make(chan string, 16)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		seen <- strings.Join(r.TLS.PeerCertificates[0].DNSNames, " ")
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()

	issue("gate", "first.example")
	if err := os.WriteFile(filepath.Join(dir, "root.pem"), root.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{Telemetry: &config.Telemetry{
		Endpoint: server.URL, CA: filepath.Join(dir, "root.pem"), Cert: filepath.Join(dir, "gate.crt"), Key: filepath.Join(dir, "gate.key"),
		Metrics: config.Metrics{Interval: 100 * time.Millisecond},
	}}
	blank := func() *App { return &App{serving: serving{log: hclog.NewNullLogger()}, metrics: newMetrics("test")} }
	a := blank()
	if err := a.openTelemetry(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer a.telemetry.Close(t.Context())
	shown := func(want string) {
		for got, late := "", time.After(20*time.Second); got != want; {
			select {
			case got = <-seen:
			case <-late:
				t.Fatalf("the certificate of %s is never shown", want)
			}
		}
	}
	shown("first.example")
	issue("gate", "second.example")
	shown("second.example")
	cfg.Telemetry.Key = filepath.Join(dir, "none.key")
	if err := blank().openTelemetry(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "toolgate.telemetry.cert: ") {
		t.Errorf("a key that is not there: %v", err)
	}
}

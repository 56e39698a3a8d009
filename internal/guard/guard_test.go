package guard_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/toolgate/toolgate/internal/guard"
)

// request is a GET with one Host, any number of Origins, that came to the
// address 192.0.2.7.
func request(host string, origins ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://x/", nil)
	r.Host = host
	if len(origins) > 0 {
		r.Header["Origin"] = origins
	}
	at := &net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.7"), Port: 8787}
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, at))
}

// TestHosts: a Host is ours when it is a name we go by, or the address that
// the connection came to. A name that we list with a port is ours at that port alone.
func TestHosts(t *testing.T) {
	hosts := guard.NewHosts([]string{"gate.example", "", "Second.Example.", "port.example:8443", "web.example:443", "[2001:db8::1]:8787"})
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST:8787": true, "localhost.": true, "127.0.0.1": true, "127.0.0.1:1": true, "[::1]:8787": true, "[::1]": true,
		"gate.example": true, "GATE.example:8787": true, "second.example": true,
		"192.0.2.7": true, "192.0.2.7:8787": true, "[::ffff:192.0.2.7]:8787": true,
		"port.example:8443": true, "PORT.example.:8443": true, "port.example": false, "port.example:8787": false, "port.example:": false,
		"web.example": false, "web.example:443": true, "[2001:db8::1]:8787": true, "[2001:db8::1]": false,
		"": false, "evil.example": false, "localhost.evil.example": false, "gate.example.evil": false, "sub.gate.example": false,
		"192.0.2.8": false, "10.1.2.3:8787": false, "0.0.0.0": false, "[::]": false, "2130706433": false, "127.1": false,
	} {
		if got := hosts.Admits(request(host)); got != want {
			t.Errorf("Host %q: admitted %v, want %v", host, got, want)
		}
	}
	secure := request("web.example")
	secure.TLS = &tls.ConnectionState{}
	if !hosts.Admits(secure) {
		t.Error("a Host without a port is not the default port of https")
	}
}

// TestNoAddressNoLiteral: without the connection's own address no literal but
// loopback is ours.
func TestNoAddressNoLiteral(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "http://x/", nil)
	r.Host = "192.0.2.7"
	if guard.NewHosts(nil).Admits(r) {
		t.Error("an address of nobody's was admitted")
	}
}

// TestOrigins: a page calls only the listener that it came from, port included, unless
// its origin is listed. A listed origin without a port has the default one.
func TestOrigins(t *testing.T) {
	hosts := guard.NewHosts([]string{"gate.example"}, "https://app.example", "http://dev.example:3000", "https://Slash.example/")
	for _, tt := range []struct {
		host    string
		origins []string
		want    bool // over plain HTTP
		secure  bool // over TLS
	}{
		{"localhost:8787", nil, true, true},
		{"localhost:8787", []string{"http://localhost:8787"}, true, false},
		{"localhost:8787", []string{"https://localhost:8787"}, true, true},
		{"localhost:8787", []string{"http://localhost:3000"}, false, false},
		{"localhost:8787", []string{"http://localhost"}, false, false},
		{"localhost:8787", []string{"http://127.0.0.1:8787"}, false, false},
		{"[::1]:9", []string{"http://[::1]:9"}, true, false},
		{"gate.example", []string{"https://gate.example"}, true, true},
		{"gate.example", []string{"https://GATE.example:443"}, true, true},
		{"gate.example", []string{"http://gate.example"}, true, false},
		{"gate.example", []string{"http://gate.example:443"}, false, false},
		{"gate.example:8787", []string{"https://gate.example"}, false, false},
		{"localhost", []string{"https://gate.example"}, false, false},
		{"localhost", []string{"https://app.example"}, true, true},
		{"localhost", []string{"https://app.example:443"}, true, true},
		{"localhost", []string{"https://app.example:8443"}, false, false},
		{"localhost", []string{"http://app.example"}, false, false},
		{"localhost", []string{"http://dev.example:3000"}, true, true},
		{"localhost", []string{"http://dev.example"}, false, false},
		{"localhost", []string{"https://slash.example"}, true, true},
		{"localhost", []string{"http://evil.example"}, false, false},
		{"localhost", []string{"null"}, false, false},
		{"localhost", []string{""}, false, false},
		{"localhost", []string{"file://localhost"}, false, false},
		{"localhost", []string{"http://"}, false, false},
		{"localhost", []string{"http://localhost@evil.example"}, false, false},
		{"localhost", []string{"http://user@localhost"}, false, false},
		{"localhost", []string{"http://localhost/path"}, false, false},
		{"localhost", []string{"http://localhost?x"}, false, false},
		{"localhost", []string{"http://localhost#x"}, false, false},
		{"localhost", []string{"http://192.0.2.7"}, false, false},
		{"localhost", []string{"http://localhost", "http://localhost"}, false, false},
		{"localhost", []string{"http://local host"}, false, false},
	} {
		r := request(tt.host, tt.origins...)
		if got := hosts.Admits(r); got != tt.want {
			t.Errorf("Host %s, Origin %q: admitted %v, want %v", tt.host, tt.origins, got, tt.want)
		}
		r.TLS = &tls.ConnectionState{}
		if got := hosts.Admits(r); got != tt.secure {
			t.Errorf("Host %s, Origin %q over TLS: admitted %v, want %v", tt.host, tt.origins, got, tt.secure)
		}
	}
}

// TestJSONBody: one reading only.
func TestJSONBody(t *testing.T) {
	for _, tt := range []struct {
		types    []string
		encoding string
		want     bool
	}{
		{[]string{"application/json"}, "", true},
		{[]string{"APPLICATION/JSON"}, "", true},
		{[]string{"application/json; charset=UTF-8"}, "", true},
		{[]string{`application/json; charset="utf-8"`}, "", true},
		{[]string{"application/json; v=1"}, "", true},
		{nil, "", false},
		{[]string{""}, "", false},
		{[]string{"text/plain"}, "", false},
		{[]string{"application/json; charset=utf-16"}, "", false},
		{[]string{"application/json; charset=utf-8; charset=utf-16"}, "", false},
		{[]string{"application/json, text/plain"}, "", false},
		{[]string{"application/json", "application/json"}, "", false},
		{[]string{"application/x-www-form-urlencoded"}, "", false},
		{[]string{"application/json"}, "gzip", false},
	} {
		h := http.Header{}
		if tt.types != nil {
			h["Content-Type"] = tt.types
		}
		if tt.encoding != "" {
			h.Set("Content-Encoding", tt.encoding)
		}
		if got := guard.JSONBody(h); got != tt.want {
			t.Errorf("Content-Type %q, Content-Encoding %q: %v, want %v", tt.types, tt.encoding, got, tt.want)
		}
	}
}

// TestAccepts: the most specific range decides, and 0 refuses.
func TestAccepts(t *testing.T) {
	for _, tt := range []struct {
		accept []string
		json   bool
		events bool
	}{
		{nil, true, true},
		{[]string{"*/*"}, true, true},
		{[]string{"application/json"}, true, false},
		{[]string{"Application/JSON"}, true, false},
		{[]string{"application/*"}, true, false},
		{[]string{"text/event-stream"}, false, true},
		{[]string{"text/*;q=0.1"}, false, true},
		{[]string{"application/json, text/event-stream"}, true, true},
		{[]string{"application/json", "text/event-stream"}, true, true},
		{[]string{"text/html"}, false, false},
		{[]string{""}, false, false},
		{[]string{"application"}, false, false},
		{[]string{"application/jsonx, app/*"}, false, false},
		{[]string{"application/json;q=0"}, false, false},
		{[]string{"application/json;q=0.0, */*"}, false, true},
		{[]string{"*/*, application/json; Q=0.000"}, false, true},
		{[]string{"application/*;q=0, application/json"}, true, false},
		{[]string{"*/*;q=0"}, false, false},
		{[]string{"application/json;q=0, application/json"}, true, false},
		{[]string{"application/json, application/json;q=0"}, true, false},
	} {
		h := http.Header{}
		if tt.accept != nil {
			h["Accept"] = tt.accept
		}
		if got := guard.Accepts(h, "application/json"); got != tt.json {
			t.Errorf("Accept %q: JSON %v, want %v", tt.accept, got, tt.json)
		}
		if got := guard.Accepts(h, "text/event-stream"); got != tt.events {
			t.Errorf("Accept %q: events %v, want %v", tt.accept, got, tt.events)
		}
	}
}

// FuzzAccepts: any header is an answer, never a panic; a range that is not
// there accepts nothing.
func FuzzAccepts(f *testing.F) {
	for _, seed := range []string{"", "*/*", "application/json;q=0", "text/*, ;q", ",,,/"} {
		f.Add(seed, "localhost:1", "http://localhost")
	}
	f.Fuzz(func(t *testing.T, accept, host, origin string) {
		h := http.Header{"Accept": {accept}}
		if guard.Accepts(h, "application/json") && guard.Accepts(http.Header{"Accept": {accept + ", */*;q=0"}}, "application/json") !=
			guard.Accepts(http.Header{"Accept": {"*/*;q=0, " + accept}}, "application/json") {
			t.Errorf("the order of %q decides", accept)
		}
		guard.NewHosts(nil).Admits(request(host, origin))
	})
}

// Only the proxies that are trusted name a client, and only the part of
// X-Forwarded-For that they wrote is believed.
func TestClient(t *testing.T) {
	var proxies []netip.Prefix
	for _, text := range []string{"10.0.0.0/8", "2001:db8::1"} {
		p, err := guard.ParseNetwork(text)
		if err != nil {
			t.Fatal(err)
		}
		proxies = append(proxies, p)
	}
	for _, tc := range []struct {
		peer      string
		forwarded []string
		want      string
	}{
		{"192.0.2.1:5", nil, "192.0.2.1"},
		{"192.0.2.1:5", []string{"198.51.100.9"}, "192.0.2.1"},
		{"10.0.0.1:5", []string{"198.51.100.9"}, "198.51.100.9"},
		{"10.0.0.1:5", []string{"203.0.113.1, 198.51.100.9"}, "198.51.100.9"},
		{"10.0.0.1:5", []string{"198.51.100.9, 10.0.0.2", "10.0.0.3"}, "198.51.100.9"},
		{"10.0.0.1:5", []string{"198.51.100.9:77"}, "198.51.100.9"},
		{"[2001:db8::1]:5", []string{"[2001:db8::7]:80"}, "2001:db8::7"},
		{"[::ffff:10.0.0.1]:5", []string{"198.51.100.9"}, "198.51.100.9"},
		{"10.0.0.1:5", []string{"unknown"}, "10.0.0.1"},
		{"10.0.0.1:5", []string{"198.51.100.9, "}, "10.0.0.1"},
		{"10.0.0.1:5", nil, "10.0.0.1"},
		{"@", nil, "@"},
	} {
		r := &http.Request{RemoteAddr: tc.peer, Header: http.Header{"X-Forwarded-For": tc.forwarded}}
		if got := guard.Client(r, proxies); got != tc.want {
			t.Errorf("peer %s, forwarded %q: %s, want %s", tc.peer, tc.forwarded, got, tc.want)
		}
	}
}

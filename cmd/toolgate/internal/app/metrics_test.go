package app_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/testkit/authority"
	"github.com/toolgate/toolgate/internal/testkit/corpus"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/registry/config"
)

// measured is a running toolgate whose metrics are read as Prometheus reads them.
type measured struct {
	*app.App
	dir, agents, metrics string
	people               *http.Client
	reload               chan os.Signal
	answer               chan struct{} // lets a call of zone slow end
	valid                time.Time     // the end of the people's certificate
}

// measuredPolicy decides by the argument zone.
const measuredPolicy = `package toolgate

allow contains {"rule": "free", "reason": "clocks are free"} if input.arguments.zone in {"UTC", "slow"}

allow contains {"rule": "rare", "reason": "now and then", "limit": {"rate": "1/1h", "key": concat("", ["of ", input.principal.subject])}} if input.arguments.zone == "rare"

hold contains {"rule": "asked", "reason": "somebody looks first", "approval": {"roles": ["lead"]}} if input.arguments.zone == "held"
`

func (m *measured) configure(t *testing.T, server, more string) {
	t.Helper()
	text := fmt.Sprintf(`{
		"mcpServers": { "clock": { "url": %q }, "away": { "url": "http://127.0.0.1:1" }, "off": { "url": "http://127.0.0.1:1", "disabled": true } },
		"toolgate": { "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "state": "state", "keys": "keys", "policy": { "path": "policy", "timeout": "10s" },
			"admin_tls": { "cert": "people.crt", "key": "people.key" }%s } }`, server, more)
	if err := os.WriteFile(filepath.Join(m.dir, "mcp.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// measure runs a toolgate for as long as the test.
func measure(t *testing.T) *measured {
	m := &measured{dir: t.TempDir(), reload: make(chan os.Signal), answer: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte(`"slow"`)) {
			<-m.answer
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		clockServer(w, r)
	}))
	t.Cleanup(server.Close)
	ca, err := authority.New("test")
	if err != nil {
		t.Fatal(err)
	}
	m.valid = time.Now().Add(time.Hour)
	if err := ca.Write(filepath.Join(m.dir, "people"), time.Hour, "gate.example"); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.PEM())
	m.people = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "gate.example"}, DisableKeepAlives: true}}
	m.configure(t, server.URL, "")
	if err := os.Mkdir(filepath.Join(m.dir, "policy"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.dir, "policy", "p.rego"), []byte(measuredPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	m.run(t)
	return m
}

func (m *measured) run(t *testing.T) {
	t.Helper()
	read := func() (*config.Config, error) {
		return config.Load(config.Options{Path: filepath.Join(m.dir, "mcp.json")})
	}
	cfg, err := read()
	if err != nil {
		t.Fatal(err)
	}
	l, err := app.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	if m.App, err = app.Open(ctx, l.Bound(cfg), app.Options{Role: "observer", Version: "1.2.3"}); err != nil {
		t.Fatal(err)
	}
	m.agents, m.metrics = "http://"+l.Agents.Addr().String(), "https://"+l.People.Addr().String()+"/metrics"
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, l, app.Reload{Begun: cfg, Next: read, Asked: m.reload}) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	m.WaitForUpstreams(t.Context())
}

// scrape returns what /metrics answers.
func (m *measured) scrape(t *testing.T) string {
	t.Helper()
	res, err := m.people.Get(m.metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("/metrics: %d, %v", res.StatusCode, err)
	}
	return string(text)
}

// value returns the value of a sample, "" when there is none.
func (m *measured) value(t *testing.T, sample string) string {
	t.Helper()
	for line := range strings.Lines(m.scrape(t)) {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (m *measured) call(zone string) string { return call(m.agents+"/v1/jobs", zone) }

// initialize opens a session.
func (m *measured) initialize() string {
	req, _ := http.NewRequest(http.MethodPost, m.agents+"/mcp", strings.NewReader(
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	res.Body.Close()
	return strconv.Itoa(res.StatusCode)
}

// TestMetricsMove does what a metric is about, and holds that it moves.
func TestMetricsMove(t *testing.T) {
	m := measure(t)
	// The metrics that a start sets.
	program.Await(t, "the upstream that is away", func() bool { return m.value(t, `toolgate_upstream_up{server="away"}`) == "0" })
	for sample, want := range map[string]string{
		`toolgate_upstream_up{server="clock"}`: "1", `toolgate_upstream_up{server="off"}`: "",
		`toolgate_negotiated{extension="other",side="server"}`: "0", `toolgate_negotiated{extension="other",side="client"}`: "0",
		`toolgate_sessions{transport="sse"}`: "0", `toolgate_calls_parked`: "0", `toolgate_config_last_reload_successful`: "1",
	} {
		if got := m.value(t, sample); got != want {
			t.Errorf("%s is %q, want %q", sample, got, want)
		}
	}
	if text := m.scrape(t); !regexp.MustCompile(`(?m)^toolgate_build_info\{goversion="go1\.[^"]*",version="1\.2\.3"\} 1$`).MatchString(text) {
		t.Error("toolgate_build_info does not name the versions")
	}
	if end, _ := strconv.ParseFloat(m.value(t, `toolgate_certificate_expiry_timestamp_seconds{listener="people"}`), 64); end < float64(m.valid.Unix()-60) || end > float64(m.valid.Unix()+60) {
		t.Errorf("the certificate ends at %v, want about %v", end, m.valid.Unix())
	}

	call := func(zone, answer string) func(*testing.T) {
		return func(t *testing.T) {
			if got := m.call(zone); !strings.Contains(got, answer) {
				t.Errorf("answer %q, want %q", got, answer)
			}
		}
	}
	slow := make(chan string, 1)
	file, trail := filepath.Join(m.dir, "mcp.json"), filepath.Join(m.dir, "state", "audit")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(text string) func(*testing.T) {
		return func(t *testing.T) {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			m.reload <- syscall.SIGHUP
		}
	}
	for _, step := range []struct {
		what  string
		do    func(*testing.T)
		moves map[string]string // :: sample -> its value afterwards; "more" = more than before
	}{
		{"a call", call("UTC", "200"), map[string]string{
			`toolgate_calls_total{code="",effect="allow",server="clock",tool="clock__now"}`: "1",
			`toolgate_call_duration_seconds_count{server="clock"}`:                          "1",
			`toolgate_upstream_duration_seconds_count{server="clock"}`:                      "1",
			`toolgate_policy_evaluation_seconds_count`:                                      "more",
			`toolgate_audit_last_write_timestamp_seconds`:                                   "more",
		}},
		{"a denied call", call("moon", "403"), map[string]string{
			`toolgate_calls_total{code="T5_IDENTITY_VIOLATION",effect="deny",server="clock",tool="clock__now"}`: "1",
			`toolgate_call_duration_seconds_count{server="clock"}`:                                              "2",
			`toolgate_upstream_duration_seconds_count{server="clock"}`:                                          "1",
		}},
		{"a call within its limit", call("rare", "200"), map[string]string{`toolgate_limited_total{rule="policy"}`: ""}},
		{"a call beyond its limit", call("rare", "429"), map[string]string{`toolgate_limited_total{rule="policy"}`: "1"}},
		{"a call begins", func(*testing.T) { go func() { slow <- m.call("slow") }() }, map[string]string{`toolgate_calls_in_flight`: "1"}},
		{"a call ends", func(*testing.T) { m.answer <- struct{}{}; <-slow }, map[string]string{`toolgate_calls_in_flight`: "0"}},
		{"a held call", call("held", "202"), map[string]string{`toolgate_approvals_pending`: "1", `toolgate_approvals_oldest_seconds`: "more"}},
		{"a session", func(t *testing.T) {
			if got := m.initialize(); got != "200" {
				t.Error(got)
			}
		}, map[string]string{`toolgate_sessions{transport="http"}`: "1"}},
		{"a reload that fails", reload("{"), map[string]string{`toolgate_reloads_total{outcome="refused"}`: "1", `toolgate_config_last_reload_successful`: "0"}},
		{"a reload", reload(string(good)), map[string]string{`toolgate_reloads_total{outcome="applied"}`: "1", `toolgate_config_last_reload_successful`: "1"}},
		{"the trail is away", func(t *testing.T) {
			if err := os.Rename(trail, trail+".away"); err != nil {
				t.Fatal(err)
			}
			call("UTC", "AUDIT_UNAVAILABLE")(t)
		}, map[string]string{`toolgate_audit_write_errors_total`: "more"}},
		{"the trail is back", func(t *testing.T) {
			if err := os.Rename(trail+".away", trail); err != nil {
				t.Fatal(err)
			}
			call("UTC", "200")(t)
		}, map[string]string{`toolgate_audit_last_write_timestamp_seconds`: "more"}},
	} {
		before := make(map[string]float64)
		for sample := range step.moves {
			before[sample], _ = strconv.ParseFloat(m.value(t, sample), 64)
		}
		step.do(t)
		for sample, want := range step.moves {
			program.Await(t, step.what+": "+sample+" "+want, func() bool {
				got := m.value(t, sample)
				now, _ := strconv.ParseFloat(got, 64)
				return got == want || want == "more" && now > before[sample]
			})
		}
	}
	if text := m.scrape(t); strings.Contains(text, "of local") {
		t.Error("a label has the key of a limit, which names a person")
	}
}

// TestLimitLabel: the label of a limit names no person and comes from the configuration.
func TestLimitLabel(t *testing.T) {
	for rule, want := range map[string]string{
		"default": "default", "refused": "refused", "every call": "every call", "tool=search role=lead": "tool=search role=lead",
		"policy of ann": "policy", "principal=ann": "principal", "tool=search principal=ann": "tool=search",
	} {
		if got := app.RuleLabel(rule); got != want {
			t.Errorf("%q has the label %q, want %q", rule, got, want)
		}
	}
}

// TestMetricsDocumented: the reference lists the metrics of a running toolgate and their
// labels, and no others; and promtool finds nothing to say about them.
func TestMetricsDocumented(t *testing.T) {
	m := measure(t)
	m.call("UTC")
	text, err := os.ReadFile(filepath.Join(corpus.Checkout(t), "docs", "reference.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := make(map[string]string) // :: name -> the rest of the row
	for _, row := range regexp.MustCompile("(?m)^\\| `(toolgate_\\w+)` \\|(.*)$").FindAllStringSubmatch(section, -1) {
		documented[row[1]] = row[2]
	}
	exported := m.MetricLabels()
	for name, labels := range exported {
		row, ok := documented[name]
		if !ok {
			t.Errorf("docs/reference.md#metrics does not list %s", name)
		}
		for _, label := range labels {
			if ok && !strings.Contains(row, "`"+label+"`") {
				t.Errorf("docs/reference.md#metrics does not name the label %s of %s", label, name)
			}
		}
	}
	for name := range documented {
		if _, ok := exported[name]; !ok {
			t.Errorf("docs/reference.md#metrics lists %s, which is not exported; these are: %s", name, slices.Sorted(maps.Keys(exported)))
		}
	}

	check := exec.Command(parts.Need(t, "promtool"), "check", "metrics")
	check.Stdin = strings.NewReader(m.scrape(t))
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

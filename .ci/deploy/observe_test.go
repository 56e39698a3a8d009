package deploy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// dashboard is what a test reads of a dashboard of Grafana.
type dashboard struct {
	SchemaVersion int
	Templating    struct{ List []struct{ Name, Type string } }
	Panels        []struct {
		Type, Title, Description string
		Datasource               struct{ UID string }
		Targets                  []struct {
			Expr, LegendFormat string
			Datasource         struct{ UID string }
		}
	}
}

func readDocs(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestDashboard: Prometheus' parser accepts each expression, a running toolgate or the
// reference has its metrics with their labels, and what a legend names is a label of the
// result.
//
// That the reference lists what is exported, and nothing else, is a test of cmd/toolgate/internal/app.
func TestDashboard(t *testing.T) {
	var d dashboard
	if err := json.Unmarshal(readDocs(t, "deploy/grafana/toolgate.json"), &d); err != nil {
		t.Fatal(err)
	}
	if d.SchemaVersion < 39 || len(d.Templating.List) == 0 || d.Templating.List[0].Type != "datasource" {
		t.Errorf("schema %d, variables %v: want those of Grafana 11 and a data source first", d.SchemaVersion, d.Templating.List)
	}
	known, rows := documented(t), []string{}
	maps.Copy(known, scraped(t))
	used := map[string]bool{}
	for _, p := range d.Panels {
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q has description %q and %d expressions", p.Title, p.Description, len(p.Targets))
		}
		for _, target := range p.Targets {
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q reads from %q", p.Title, target.Datasource.UID)
			}
			for name := range checkExpression(t, p.Title, target.Expr, target.LegendFormat, known) {
				used[name] = true
			}
		}
	}
	if want := []string{"Calls and refusals", "Latency and stages", "Approvals", "Limits", "Upstreams", "Audit", "Policy", "Runtime"}; !slices.Equal(rows, want) {
		t.Errorf("rows are %q, want %q", rows, want)
	}
	for name := range documented(t) {
		if !used[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// checkExpression parses an expression, and returns the metrics that it reads.
func checkExpression(t *testing.T, panel, text, legend string, known map[string][]string) map[string]bool {
	t.Helper()
	expr, err := parser.ParseExpr(strings.ReplaceAll(text, "$__rate_interval", "5m"))
	if err != nil {
		t.Fatalf("panel %q: %v\n%s", panel, err, text)
	}
	metrics, named := map[string]bool{}, []string{}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			name := baseName(n.Name, known)
			metrics[name] = true
			if known[name] == nil {
				t.Errorf("panel %q: no metric %s", panel, n.Name)
			}
			for _, m := range n.LabelMatchers {
				if m.Name != labels.MetricName {
					named = append(named, m.Name)
				}
			}
		case *parser.AggregateExpr:
			named = append(named, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				named = append(named, n.VectorMatching.MatchingLabels...)
			}
		}
		return nil
	})
	for _, ref := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(legend, -1) {
		named = append(named, ref[1])
		if !regexp.MustCompile(`by \([^)]*\b` + ref[1] + `\b`).MatchString(text) {
			t.Errorf("panel %q: the legend names %s, which the result has not\n%s", panel, ref[1], text)
		}
	}
	for _, label := range named {
		for name := range metrics {
			if !slices.Contains(append(known[name], "job", "instance"), label) {
				t.Errorf("panel %q: metric %s has no label %s, but %v", panel, name, label, known[name])
			}
		}
	}
	return metrics
}

// baseName returns the name of the histogram of a series.
func baseName(name string, known map[string][]string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && known[base] != nil {
			return base
		}
	}
	return name
}

// documented returns the labels of the metrics of docs/reference.md.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{"toolgate_telemetry_dropped_total": {"signal"}} // only with telemetry: not in the table
	for _, row := range regexp.MustCompile("(?m)^\\| `(toolgate_\\w+)` \\|(.*)$").FindAllStringSubmatch(string(readDocs(t, "reference.md")), -1) {
		found[row[1]] = []string{"le"}
		for _, label := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[2], -1) {
			found[row[1]] = append(found[row[1]], label[1])
		}
	}
	return found
}

// scraped returns the labels of the metrics that a toolgate exports after a call and a
// refused one.
func scraped(t *testing.T) map[string][]string {
	t.Helper()
	toolgate, err := filepath.Abs("../../bin/toolgate")
	if err != nil {
		t.Fatal(err)
	}
	agents, admin := freeAddress(t), freeAddress(t)
	dir := t.TempDir()
	config := fmt.Sprintf(`{"mcpServers": {"standard": {"command": %q, "args": ["tools", "--dir", "files"]}}, "toolgate": {"listen": %q, "admin": %q, "state": "state", "keys": "keys", "servers": {"standard": {"prefix": ""}}}}`, toolgate, agents, admin)
	if err := os.WriteFile(filepath.Join(dir, "mcp.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := exec.Command(toolgate, "serve", "--role", "researcher")
	serve.Dir = dir
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Signal(os.Interrupt) // it may have ended
		_ = serve.Wait()
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		call := exec.Command(toolgate, "tool", "call", "search_internet", "--args", `{"query": "policy"}`, "--addr", "http://"+agents)
		out, err := call.CombinedOutput()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the call is not answered: %v\n%s", err, out)
		}
	}
	_ = exec.Command(toolgate, "tool", "call", "nothing", "--addr", "http://"+agents).Run() // it is refused
	res, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	read := expfmt.NewTextParser(model.UTF8Validation)
	families, err := read.TextToMetricFamilies(res.Body)
	if err != nil || families["toolgate_calls_total"] == nil {
		t.Fatalf("/metrics: %v", err)
	}
	found := map[string][]string{}
	for name, f := range families {
		found[name] = []string{"le"}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				found[name] = append(found[name], l.GetName())
			}
		}
	}
	return found
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestRules: the rules and the dashboard of the chart are the files of docs/deploy, and
// only there when they are asked for.
func TestRules(t *testing.T) {
	objects, err := render(t, identity+"insecure: true\n")
	if err != nil {
		t.Fatal(err)
	}
	if objects["PrometheusRule"] != nil || objects["ConfigMap/gate-toolgate-dashboard"] != nil {
		t.Error("rules or a dashboard, and nobody asked")
	}
	objects, err = render(t, identity+"insecure: true\nprometheusRule: { enabled: true, labels: { release: prometheus } }\ndashboard: { enabled: true }\n")
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := yaml.Unmarshal(readDocs(t, "deploy/prometheus/alerts.yaml"), &want); err != nil {
		t.Fatal(err)
	}
	rule := objects["PrometheusRule"].(*unstructured.Unstructured)
	if !reflect.DeepEqual(rule.Object["spec"], any(want)) || len(want) == 0 || rule.GetLabels()["release"] != "prometheus" {
		t.Errorf("the rules are %v with labels %v, want %v", rule.Object["spec"], rule.GetLabels(), want)
	}
	shown := objects["ConfigMap/gate-toolgate-dashboard"].(*core.ConfigMap)
	if shown.Labels["grafana_dashboard"] != "1" || strings.TrimSpace(shown.Data["toolgate.json"]) != strings.TrimSpace(string(readDocs(t, "deploy/grafana/toolgate.json"))) {
		t.Errorf("the dashboard differs from the file, or has labels %v", shown.Labels)
	}
}

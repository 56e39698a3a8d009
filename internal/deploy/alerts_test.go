package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// ruleFiles are those of docs/deploy/prometheus. Each has a file of tests.
var ruleFiles = []string{"alerts", "slo"}

// An alert is one alerting rule. Its Expr has the expressions of recording rules in the
// place of their names.
type alert struct {
	Alert, Record, Expr string
	Labels, Annotations map[string]string
}

func readAlerts(t *testing.T) (all []alert) {
	t.Helper()
	for _, name := range ruleFiles {
		var file struct{ Groups []struct{ Rules []alert } }
		readYAML(t, "prometheus/"+name+".yaml", &file)
		for _, g := range file.Groups {
			var recorded []string
			for _, r := range g.Rules {
				if r.Alert == "" {
					recorded = append(recorded, r.Record, r.Expr)
					continue
				}
				r.Expr = strings.NewReplacer(recorded...).Replace(r.Expr)
				all = append(all, r)
			}
		}
	}
	if len(all) == 0 {
		t.Fatal("there are no alerts")
	}
	return all
}

func readYAML(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(deployed(t, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

func readDocument(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(corpus.Checkout(t), "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAlertRules: Prometheus accepts the rules, and each alert fires in its case.
func TestAlertRules(t *testing.T) {
	parts.Long(t, "deploys toolgate")
	var fires []string
	for _, name := range ruleFiles {
		var cases struct {
			Tests []struct {
				AlertRuleTest []struct {
					Alertname string
					ExpAlerts []any `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			}
		}
		readYAML(t, "prometheus/"+name+"_test.yaml", &cases)
		for _, c := range cases.Tests {
			for _, a := range c.AlertRuleTest {
				if len(a.ExpAlerts) > 0 {
					fires = append(fires, a.Alertname)
				}
			}
		}
	}
	for _, a := range readAlerts(t) {
		if !slices.Contains(fires, a.Alert) {
			t.Errorf("no case has %s fire", a.Alert)
		}
	}
	promtool := parts.Need(t, "promtool")
	for _, command := range [][]string{{"check", "rules", "alerts.yaml", "slo.yaml"}, {"test", "rules", "alerts_test.yaml", "slo_test.yaml"}} {
		cmd := exec.Command(promtool, command...)
		cmd.Dir = deployed(t, "prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(command, " "), err, out)
		}
	}
}

// TestAlertsAreExplained: alerts use metrics that are exported, and each has a severity,
// a summary and a section of the runbook, which has no other sections.
//
// That the reference lists what is exported is a test of cmd/toolgate/internal/app.
func TestAlertsAreExplained(t *testing.T) {
	parts.Long(t, "deploys toolgate")
	exported := make(map[string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `(toolgate_\\w+)` \\|").FindAllStringSubmatch(readDocument(t, "reference.md"), -1) {
		exported[row[1]] = true
	}
	headings := make(map[string]string) // :: anchor -> heading
	for _, h := range regexp.MustCompile(`(?m)^### (Toolgate.+)$`).FindAllStringSubmatch(readDocument(t, "run.md"), -1) {
		headings[strings.ReplaceAll(strings.ToLower(h[1]), " ", "-")] = h[1]
	}
	for _, a := range readAlerts(t) {
		metrics := regexp.MustCompile(`toolgate_\w+`).FindAllString(a.Expr, -1)
		if len(metrics) == 0 {
			t.Errorf("%s uses no metric", a.Alert)
		}
		for _, name := range metrics {
			if !exported[strings.TrimSuffix(name, "_bucket")] {
				t.Errorf("%s uses %s, which is not exported", a.Alert, name)
			}
		}
		if !slices.Contains([]string{"warning", "critical"}, a.Labels["severity"]) || a.Annotations["summary"] == "" {
			t.Errorf("%s has severity %q and summary %q", a.Alert, a.Labels["severity"], a.Annotations["summary"])
		}
		document, anchor, _ := strings.Cut(a.Annotations["runbook_url"], "#")
		if !strings.HasSuffix(document, "/docs/run.md") || headings[anchor] != a.Alert {
			t.Errorf("%s has runbook_url %q, and no section of its own there", a.Alert, a.Annotations["runbook_url"])
		}
		delete(headings, anchor)
	}
	for _, h := range headings {
		t.Errorf("docs/run.md has a section %q without an alert", h)
	}
}

package deploy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// prometheus is a server that scrapes a toolgate and evaluates the alerts of docs/deploy.
// Their expressions and annotations are as they are; what they wait for is shorter.
type prometheus struct{ url string }

// patience is how long an expression of a shortened alert has to hold, longer than two
// scrapes that a busy machine misses.
const patience = "8s"

// watch starts a server that reads the metrics at an address.
func watch(t *testing.T, admin string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	var rules map[string]any
	readYAML(t, "prometheus/alerts.yaml", &rules)
	for _, g := range rules["groups"].([]any) {
		for _, r := range g.(map[string]any)["rules"].([]any) {
			if rule := r.(map[string]any); rule["for"] != nil {
				rule["for"] = patience
			}
		}
	}
	text, err := yaml.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "alerts.yaml"), text, 0o600)
	writeFile(t, filepath.Join(dir, "prometheus.yml"), fmt.Appendf(nil, `
global: { scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 1s }
rule_files: [alerts.yaml]
scrape_configs: [{ job_name: toolgate, static_configs: [{ targets: [%q] }] }]
`, admin), 0o600)
	binary := parts.Need(t, "prometheus")
	_, address := program.LaunchAt(t, func(address string) *exec.Cmd {
		cmd := exec.Command(binary, "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address="+address)
		cmd.Dir = dir
		return cmd
	})
	program.Await(t, "Prometheus is ready", func() bool {
		res := program.Get(t, "http://"+address+"/-/ready", "")
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	return &prometheus{"http://" + address}
}

// read decodes what the API answers at a path.
func (p *prometheus) read(t testing.TB, path string, into any) {
	t.Helper()
	res := program.Get(t, p.url+path, "")
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// firing returns the alerts that fire, by name.
func (p *prometheus) firing(t testing.TB) map[string]alert {
	t.Helper()
	var answer struct {
		Data struct {
			Alerts []struct {
				State               string
				Labels, Annotations map[string]string
			}
		}
	}
	p.read(t, "/api/v1/alerts", &answer)
	found := make(map[string]alert)
	for _, a := range answer.Data.Alerts {
		if name := a.Labels["alertname"]; a.State == "firing" {
			found[name] = alert{Alert: name, Labels: a.Labels, Annotations: a.Annotations}
		}
	}
	return found
}

// fires waits until each alert that is named fires. Its annotations name the section of
// the runbook and no label that is missing; no other critical one fires.
func (p *prometheus) fires(t testing.TB, names ...string) {
	t.Helper()
	var firing map[string]alert
	program.Await(t, "alerts "+strings.Join(names, ", "), func() bool {
		firing = p.firing(t)
		return !slices.ContainsFunc(names, func(n string) bool { _, ok := firing[n]; return !ok })
	})
	runbook, err := os.ReadFile(deployed(t, "../run.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, a := range firing {
		_, anchor, _ := strings.Cut(a.Annotations["runbook_url"], "/docs/run.md#")
		if anchor != strings.ToLower(name) || !regexp.MustCompile("(?m)^### "+name+"$").Match(runbook) {
			t.Errorf("%s leads to %q", name, a.Annotations["runbook_url"])
		}
		if s := a.Annotations["summary"]; s == "" || strings.Contains(s, "<no value>") || strings.Contains(s, "  ") {
			t.Errorf("%s says %q", name, s)
		}
		if a.Labels["severity"] == "critical" && !slices.Contains(names, name) {
			t.Errorf("%s fires too: %s", name, a.Annotations["summary"])
		}
	}
	t.Logf("firing: %s", slices.Sorted(maps.Keys(firing)))
}

// calm waits until the last scrape went well and no alert fires.
func (p *prometheus) calm(t testing.TB) {
	t.Helper()
	program.Await(t, "Prometheus reads the metrics, and no alert fires", func() bool {
		var targets struct {
			Data struct{ ActiveTargets []struct{ Health string } }
		}
		p.read(t, "/api/v1/targets", &targets)
		healthy := len(targets.Data.ActiveTargets) == 1 && targets.Data.ActiveTargets[0].Health == "up"
		return healthy && len(p.firing(t)) == 0
	})
}

package notice_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

// What configures a channel is secret. It is in no log, fault or trouble and not
// in the store, whatever the other side answers: it may repeat what it was sent.
func TestSecretsAreNotTold(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request, code int) {
		said := fmt.Sprint(r.URL, r.Header, "whsec_cGxhbnRlZHBsYW50ZWRwbGFudGVkcGxhbnRlZA==")
		w.Header().Set("Location", r.URL.String())
		w.Header().Set("X-Said", r.URL.RawQuery)
		w.WriteHeader(code)
		_, _ = w.Write([]byte(said))
	}
	answers := map[string]http.HandlerFunc{
		"refused":    func(w http.ResponseWriter, r *http.Request) { echo(w, r, 401) },
		"redirected": func(w http.ResponseWriter, r *http.Request) { echo(w, r, 302) },
		"gone":       func(w http.ResponseWriter, r *http.Request) { echo(w, r, 410) },
		"no HTTP": func(w http.ResponseWriter, r *http.Request) {
			conn, buf, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = buf.WriteString("ICY " + r.URL.String() + "\r\n\r\n")
			_ = buf.Flush()
			_ = conn.Close()
		},
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(answer)
			defer srv.Close()
			host := strings.TrimPrefix(srv.URL, "http://")
			w := newWorld(t)
			w.keepsSecret(notice.Channel{
				Webhook: "http://planted:planted@" + host + "/planted?planted=planted", Secret: "whsec_cGxhbnRlZHBsYW50ZWRwbGFudGVkcGxhbnRlZA==",
			})
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		w := newWorld(t)
		w.keepsSecret(notice.Channel{Webhook: "http://planted:planted@127.0.0.1:1/planted"})
	})
	t.Run("no mail server", func(t *testing.T) {
		w := newWorld(t)
		w.keepsSecret(notice.Channel{Email: []string{"planted@example.org"}, From: "planted@example.org", SMTP: "smtp://planted:planted@127.0.0.1:1"})
	})
}

func (w *world) keepsSecret(c notice.Channel) {
	w.t.Helper()
	s := w.sender(c)
	w.change(s, w.held(`{}`, nil), asked)
	until(w.t, "a fault", func() bool { return w.rows("fault <> ''") == 1 })
	found := w.troubles(s)
	if len(found) != 1 || found[0].Fault == "" {
		w.t.Fatalf("%+v", found)
	}
	w.t.Log(found[0].Fault)
	s.Close()
	told := w.log.String() + fmt.Sprint(found)
	var body, fault string
	if err := w.db.Read.QueryRow("SELECT body, fault FROM notices").Scan(&body, &fault); err != nil {
		w.t.Fatal(err)
	}
	told += body + fault
	for _, file := range []string{w.path, w.path + "-wal"} {
		if postgres.Used() {
			break // there is no file
		}
		data, err := os.ReadFile(file)
		if err != nil {
			w.t.Fatal(err)
		}
		told += string(data)
	}
	if !strings.Contains(told, "threshold") {
		w.t.Fatalf("%s does not hold the notice: this looks in the wrong place", filepath.Dir(w.path))
	}
	for _, secret := range []string{"planted", "cGxhbnRlZ"} {
		if strings.Contains(told, secret) {
			w.t.Errorf("a secret is told: %v\n%s", found, w.log.String())
		}
	}
}

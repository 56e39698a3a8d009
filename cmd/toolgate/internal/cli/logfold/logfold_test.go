package logfold_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/logfold"
)

// output is what was written.
type output struct {
	mu sync.Mutex // protects the field below
	bytes.Buffer
}

func (o *output) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Buffer.Write(line)
}

// logger returns a logger, and what it has written since the last time.
func logger(format string) (hclog.Logger, *logfold.Writer, func() []string) {
	var out output
	w := logfold.New(&out)
	log := hclog.New(&hclog.LoggerOptions{Name: "toolgate", Level: hclog.Debug, Output: w, JSONFormat: format == "json"})
	return log, w, func() []string {
		out.mu.Lock()
		defer out.mu.Unlock()
		defer out.Reset()
		return strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\n' })
	}
}

// Ten lines of a kind are written at once, and then one a minute with the number of
// those that it stands for and the text of the last. A minute without one ends that.
func TestFold(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		synctest.Test(t, func(t *testing.T) {
			log, w, written := logger(format)
			defer w.Close()
			flood := func(n int) {
				for i := range n {
					log.Named("gate").Error("writing the record", "decision", fmt.Sprintf("dec_%d", i), "error", errors.New("no space left"))
				}
			}
			flood(1)
			if got := written(); len(got) != 1 {
				t.Fatalf("the first line is not there at once: %q", got)
			}
			flood(8_834)
			log.Named("gate").Warn("another")
			if got := written(); len(got) != 10 || !strings.Contains(got[9], "another") {
				t.Fatalf("%d lines at once, want 9 and another", len(got))
			}
			ends := func(count int) {
				t.Helper()
				time.Sleep(time.Minute)
				synctest.Wait()
				got := written()
				if len(got) != 1 || !strings.Contains(got[0], "no space left") {
					t.Fatalf("at the end of the minute: %q", got)
				}
				text := strings.NewReplacer(`"`, "", ":", "=").Replace(got[0])
				if !strings.Contains(text, fmt.Sprint("repeated=", count)) || format == "json" && !json.Valid([]byte(got[0])) {
					t.Errorf("want %d repeated: %s", count, got[0])
				}
			}
			ends(8_835 - 10)
			flood(500)
			if got := written(); len(got) != 0 {
				t.Errorf("%d lines in the next minute", len(got))
			}
			ends(500)
			time.Sleep(2 * time.Minute)
			flood(2)
			if got := written(); len(got) != 2 {
				t.Errorf("%d lines after a pause, want 2", len(got))
			}
		})
	}
}

// Lines of other loggers, levels, messages and values are of other kinds. Words with
// digits tell no kind.
func TestKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, w, written := logger("text")
		defer w.Close()
		for i := range 30 {
			log.Named("a").Info("x", "n", i)
			log.Named("b").Info("x", "n", i)
			log.Named("a").Warn("x", "n", i)
			log.Named("a").Info("y", "n", i)
			log.Named("a").Info("x", "server", "one")
			log.Named("a").Debug("x", "n", i)
		}
		if got := len(written()); got != 5*10+30 {
			t.Errorf("%d lines, want ten of five kinds and all of debug", got)
		}
	})
}

// Lines that all differ are bounded too, and none is lost without being counted.
func TestManyKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, w, written := logger("text")
		for i := range 5_000 {
			log.Warn(strings.NewReplacer("0", "a", "1", "b", "2", "c", "3", "d", "4", "e", "5", "f", "6", "g", "7", "h", "8", "i", "9", "j").Replace(fmt.Sprint("line ", i)))
		}
		n := len(written())
		if n > 300 {
			t.Errorf("%d lines", n)
		}
		w.Close()
		if got := written(); len(got) != 1 || !strings.Contains(got[0], fmt.Sprint("repeated=", 5_000-n)) {
			t.Errorf("Close wrote %q after %d lines", got, n)
		}
	})
}

func Example() {
	log := hclog.New(&hclog.LoggerOptions{Output: logfold.New(os.Stdout), DisableTime: true})
	log.Warn("server is down")
	// Output: [WARN]  server is down
}

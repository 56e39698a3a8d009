package progress_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/progress"
)

// Ten seconds of work, reported every 50 ms, in each form.
func TestLine(t *testing.T) {
	for _, c := range []struct {
		form  progress.Form
		lines int
		last  string
	}{
		{progress.None, 0, ""},
		{progress.Lines, 2, "100 % 0s left: all\n"},
		{progress.Bar, 50, "\r\x1b[K[####################] 100 % 0s left: all"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out writes
			l := progress.New(&out, c.form)
			for i := range int64(200) {
				time.Sleep(50 * time.Millisecond)
				l.Update(i+1, 200, func() string { return "all" })
			}
			if len(out) != c.lines || c.lines > 0 && out[len(out)-1] != c.last {
				t.Errorf("form %d: %d lines, want %d, the last %q", c.form, len(out), c.lines, out)
			}
			if l.End(); c.form == progress.Bar && out[len(out)-1] != "\r\x1b[K" {
				t.Errorf("the line stays: %q", out[len(out)-1])
			}
		})
	}
}

// The estimate is that of the pace so far, and there is none where the total is not known.
func TestEstimate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out writes
		l := progress.New(&out, progress.Bar)
		count := l.Count("copying", 40<<20)
		time.Sleep(30 * time.Second)
		_, _ = count.Write(make([]byte, 10<<20)) // a Line takes everything
		time.Sleep(time.Second)
		l.Update(3, 0, func() string { return "three" })
		want := writes{"\r\x1b[K[#####               ] 25 % 1m30s left: copying, 10 of 40 MiB", "\r\x1b[Kthree"}
		if diff := cmp.Diff(want, out); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// Files that are counted are the same files.
func TestFS(t *testing.T) {
	files := fstest.MapFS{"a/b": {Data: bytes.Repeat([]byte("x"), 100)}, "c": {Data: []byte("yz")}}
	var read bytes.Buffer
	fsys := progress.FS(files, &read)
	if err := fstest.TestFS(fsys, "a/b", "c"); err != nil {
		t.Error(err)
	}
	read.Reset()
	dir := t.TempDir()
	if err := os.CopyFS(dir, fsys); err != nil || read.Len() != 102 {
		t.Errorf("%d bytes, %v", read.Len(), err)
	}
	if n := progress.Size(dir, filepath.Join(dir, "c"), filepath.Join(dir, "none")); n != 104 {
		t.Errorf("%d bytes, want 104", n)
	}
}

// writes are the texts that were written, each by itself.
type writes []string

var _ io.Writer = (*writes)(nil)

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, string(p))
	return len(p), nil
}

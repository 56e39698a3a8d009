package app_test

import (
	"testing"
	"testing/fstest"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
)

// The memory of a process is limited by the lowest limit of its control group and of those
// above it.
func TestGroupMemory(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"a container, which sees its group as the root": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "335544320\n"}, 335544320},
		"a service": {map[string]string{"proc/self/cgroup": "0::/system.slice/toolgate.service\n",
			"sys/fs/cgroup/system.slice/toolgate.service/memory.max": "1073741824\n", "sys/fs/cgroup/system.slice/memory.max": "max\n"}, 1073741824},
		"a group above it has less": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "900\n", "sys/fs/cgroup/a/memory.max": "500\n"}, 500},
		"no limit":                  {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 0},
		"both kinds of groups":      {map[string]string{"proc/self/cgroup": "4:memory:/x\n0::/a\n", "sys/fs/cgroup/a/memory.max": "700\n"}, 700},
		"the old kind alone":        {map[string]string{"proc/self/cgroup": "4:memory:/x\n", "sys/fs/cgroup/memory.max": "700\n"}, 0},
		"another system":            {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := make(fstest.MapFS)
			for path, text := range row.files {
				root[path] = &fstest.MapFile{Data: []byte(text)}
			}
			if got := app.GroupMemory(root); got != row.want {
				t.Errorf("got %d, want %d", got, row.want)
			}
		})
	}
}

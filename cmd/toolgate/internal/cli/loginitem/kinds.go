package loginitem

import (
	"errors"
	"fmt"
	"strings"
)

// places are the directories of the files of items, below the home directory.
var places = map[string]string{"linux": ".config/systemd/user", "darwin": "Library/LaunchAgents", "windows": "AppData/Local/toolgate"}

// kinds are the operating systems whose items are known.
var kinds = map[string]kind{
	"linux": {
		file: "*.service", text: systemdText,
		install:   [][]string{{"systemctl", "--user", "daemon-reload"}, {"systemctl", "--user", "enable", "{name}.service"}, {"systemctl", "--user", "restart", "{name}.service"}},
		uninstall: [][]string{{"systemctl", "--user", "disable", "--now", "{name}.service"}},
		enabled:   []string{"systemctl", "--user", "is-enabled", "--quiet", "{name}.service"},
		running:   []string{"systemctl", "--user", "is-active", "--quiet", "{name}.service"},
		hint:      "systemctl --user needs a session of this user; toolgate service install --print shows the unit",
	},
	"darwin": {
		file: "dev.toolgate.*.plist", text: launchdText,
		install:   [][]string{{"launchctl", "bootstrap", "gui/{uid}", "{file}"}},
		uninstall: [][]string{{"launchctl", "bootout", "gui/{uid}/dev.toolgate.{name}"}},
		enabled:   []string{"launchctl", "print", "gui/{uid}/dev.toolgate.{name}"},
		running:   []string{"sh", "-c", "launchctl print gui/{uid}/dev.toolgate.{name} | grep -q 'state = running'"},
		hint:      "toolgate service uninstall removes an older agent; --print shows the file",
	},
	"windows": {
		file: "*.xml", text: windowsText,
		install:   [][]string{{"schtasks", "/Create", "/F", "/TN", "{name}", "/XML", "{file}"}, {"schtasks", "/Run", "/TN", "{name}"}},
		uninstall: [][]string{{"schtasks", "/End", "/TN", "{name}"}, {"schtasks", "/Delete", "/F", "/TN", "{name}"}},
		enabled:   []string{"schtasks", "/Query", "/TN", "{name}"},
		running:   []string{"powershell", "-NoProfile", "-Command", "if ((Get-ScheduledTask -TaskName '{name}').State -ne 'Running') { exit 1 }"},
		hint:      "toolgate service install --print shows the task",
	},
}

// Text returns the file of an item: a unit of systemd (systemd.service(5)), a property list of
// launchd (launchd.plist(5)), or a task of the Task Scheduler (MS-TSCH, section 2.5). The error
// is for an item that the system cannot express, such as one with a control character, which no
// quoting of systemd keeps on its line.
func (k kind) Text(i Item) (string, error) {
	if k.file == "*.xml" && i.EnvFile != "" {
		return "", errors.New("a scheduled task has no file of variables\nhint: set the variables for the user with setx, and leave --env-file out")
	}
	for _, text := range append(i.Command, i.Dir, i.Path, i.EnvFile) {
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return "", fmt.Errorf("%q has a control character\nhint: choose another path", text)
		}
	}
	return k.text(i), nil
}

// systemdWord quotes one word of a command line (systemd.syntax(7)).
func systemdWord(word string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$").Replace(word) + `"`
}

// plainWord quotes a word in which systemd expands no variables, so that its $ are not doubled.
func plainWord(word string) string { return strings.ReplaceAll(systemdWord(word), "$$", "$") }

// specifiers keeps systemd from expanding the % of a path (systemd.unit(5)).
func specifiers(path string) string { return strings.ReplaceAll(path, "%", "%%") }

// windowsWord quotes one word of a command line as CommandLineToArgvW reads it.
func windowsWord(word string) string {
	var b strings.Builder
	b.WriteByte('"')
	slashes := 0
	for _, r := range word {
		switch r {
		case '\\':
			slashes++
			continue
		case '"':
			b.WriteString(strings.Repeat(`\`, 2*slashes+1))
		default:
			b.WriteString(strings.Repeat(`\`, slashes))
		}
		slashes = 0
		b.WriteRune(r)
	}
	b.WriteString(strings.Repeat(`\`, 2*slashes) + `"`)
	return b.String()
}

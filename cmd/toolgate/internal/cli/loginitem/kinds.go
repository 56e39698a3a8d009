package loginitem

import (
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
)

// places are the directories of the files of items, below the home directory.
var places = map[string]string{"linux": ".config/systemd/user", "darwin": "Library/LaunchAgents", "windows": "AppData/Local/toolgate"}

// kinds are the operating systems whose items are known.
var kinds = map[string]kind{
	"linux": {
		title: "systemd user unit", file: "*.service", text: systemdUnit,
		install:   [][]string{{"systemctl", "--user", "daemon-reload"}, {"systemctl", "--user", "enable", "{name}.service"}, {"systemctl", "--user", "restart", "{name}.service"}},
		uninstall: [][]string{{"systemctl", "--user", "disable", "--now", "{name}.service"}},
		enabled:   []string{"systemctl", "--user", "is-enabled", "--quiet", "{name}.service"},
		running:   []string{"systemctl", "--user", "is-active", "--quiet", "{name}.service"},
		hint:      "systemctl --user needs a session of this user; toolgate service install --print shows the unit",
	},
	"darwin": {
		title: "LaunchAgent", file: "dev.toolgate.*.plist", text: launchAgent,
		install:   [][]string{{"launchctl", "bootstrap", "gui/{uid}", "{file}"}},
		uninstall: [][]string{{"launchctl", "bootout", "gui/{uid}/dev.toolgate.{name}"}},
		enabled:   []string{"launchctl", "print", "gui/{uid}/dev.toolgate.{name}"},
		running:   []string{"sh", "-c", "launchctl print gui/{uid}/dev.toolgate.{name} | grep -q 'state = running'"},
		hint:      "toolgate service uninstall removes an older agent; --print shows the file",
	},
	"windows": {
		title: "scheduled task", file: "*.xml", text: scheduledTask,
		install:   [][]string{{"schtasks", "/Create", "/F", "/TN", "{name}", "/XML", "{file}"}, {"schtasks", "/Run", "/TN", "{name}"}},
		uninstall: [][]string{{"schtasks", "/End", "/TN", "{name}"}, {"schtasks", "/Delete", "/F", "/TN", "{name}"}},
		enabled:   []string{"schtasks", "/Query", "/TN", "{name}"},
		running:   []string{"powershell", "-NoProfile", "-Command", "if ((Get-ScheduledTask -TaskName '{name}').State -ne 'Running') { exit 1 }"},
		hint:      "toolgate service install --print shows the task",
	},
}

// systemdUnit returns a unit of systemd (systemd.service(5)).
func systemdUnit(i Item) (string, error) {
	command := make([]string, len(i.Command))
	for n, word := range i.Command {
		command[n] = systemdWord(word)
	}
	// A program is not expanded, so that its $ are not doubled.
	command[0] = strings.ReplaceAll(command[0], "$$", "$")
	files := ""
	if i.EnvFile != "" {
		files = "EnvironmentFile=" + strings.ReplaceAll(i.EnvFile, "%", "%%") + "\n"
	}
	return fmt.Sprintf(`# %s
[Unit]
Description=toolgate for the MCP clients of this user

[Service]
Type=notify
ExecStart=%s
ExecReload=/bin/kill -HUP $MAINPID
WorkingDirectory=%s
Environment=%s
%sUMask=0077
Restart=on-failure
RestartSec=2
# Servers are killed after the calls in flight have drained, not before.
KillMode=mixed
TimeoutStopSec=60

[Install]
WantedBy=default.target
`, mark, strings.Join(command, " "), strings.ReplaceAll(i.Dir, "%", "%%"), strings.ReplaceAll(systemdWord("PATH="+i.Path), "$$", "$"), files), control(i)
}

// systemdWord quotes one word of a command line (systemd.syntax(7)).
func systemdWord(word string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$").Replace(word) + `"`
}

// control returns an error for a text with a control character, which no quoting of systemd keeps
// on its line.
func control(i Item) error {
	for _, text := range append(i.Command, i.Dir, i.Path, i.EnvFile) {
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("%q has a control character\nhint: choose another path", text)
		}
	}
	return nil
}

// launchAgent returns a property list of launchd (launchd.plist(5)).
func launchAgent(i Item) (string, error) {
	command := i.Command
	if i.EnvFile != "" {
		command = append([]string{"/bin/sh", "-c", `set -a; . "$0"; exec "$@"`, i.EnvFile}, command...)
	}
	var arguments strings.Builder
	for _, word := range command {
		fmt.Fprintf(&arguments, "    <string>%s</string>\n", escaped(word))
	}
	return fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- %s -->
<plist version="1.0">
<dict>
  <key>Label</key><string>dev.toolgate.%s</string>
  <key>ProgramArguments</key>
  <array>
%s  </array>
  <key>WorkingDirectory</key><string>%s</string>
  <key>EnvironmentVariables</key><dict><key>PATH</key><string>%s</string></dict>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>
  <key>ExitTimeOut</key><integer>60</integer>
</dict>
</plist>
`, mark, escaped(i.Name), arguments.String(), escaped(i.Dir), escaped(i.Path)), control(i)
}

// scheduledTask returns a task of the Task Scheduler (MS-TSCH, section 2.5).
func scheduledTask(i Item) (string, error) {
	if i.EnvFile != "" {
		return "", errors.New("a scheduled task has no file of variables\nhint: set the variables for the user with setx, and leave --env-file out")
	}
	words := make([]string, len(i.Command)-1)
	for n, word := range i.Command[1:] {
		words[n] = windowsWord(word)
	}
	return fmt.Sprintf(`<?xml version="1.0"?>
<!-- %s -->
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <Triggers><LogonTrigger><Enabled>true</Enabled></LogonTrigger></Triggers>
  <Settings>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure><Interval>PT1M</Interval><Count>999</Count></RestartOnFailure>
    <Hidden>true</Hidden>
  </Settings>
  <Actions>
    <Exec>
      <Command>%s</Command>
      <Arguments>%s</Arguments>
      <WorkingDirectory>%s</WorkingDirectory>
    </Exec>
  </Actions>
</Task>
`, mark, escaped(i.Command[0]), escaped(strings.Join(words, " ")), escaped(i.Dir)), control(i)
}

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

// escaped returns a text as XML has it.
func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder does not fail
	return b.String()
}

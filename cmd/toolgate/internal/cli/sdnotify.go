package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// tellServiceManager sends a state, such as READY=1, to the service manager that
// started toolgate, as sd_notify(3) describes. It does nothing when no service manager
// waits for one.
func tellServiceManager(state string) error {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	conn, err := net.Dial("unixgram", socket)
	if err != nil {
		return fmt.Errorf("reaching the service manager: %w", err)
	}
	_, err = conn.Write([]byte(state))
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("telling the service manager: %w", err)
	}
	return nil
}

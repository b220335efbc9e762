//go:build !linux

package delayserver

import (
	"net"
	"time"
)

var processStart = time.Now()

// localUs is a clock that never steps. Where it stands still during sleep, a reading of the server's clock ages by the wall clock.
func localUs() int64 { return time.Since(processStart).Microseconds() + 1 }

func keepAlive(conn *net.TCPConn) error {
	if err := conn.SetKeepAlive(true); err != nil {
		return err
	}
	return conn.SetKeepAlivePeriod(30 * time.Second)
}

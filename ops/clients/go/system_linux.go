package delayserver

import (
	"net"

	"golang.org/x/sys/unix"
)

// localUs is a clock that never steps, and goes on while the machine sleeps.
func localUs() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic("CLOCK_BOOTTIME cannot be read: " + err.Error())
	}
	return now.Nano() / 1000
}

// keepAlive probes after 30 s without traffic, then every 10 s, three times in all.
func keepAlive(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	options := []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 30},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 10},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for _, option := range options {
			if err := unix.SetsockoptInt(int(fd), option.level, option.name, option.value); err != nil && failed == nil {
				failed = err
			}
		}
	})
	if err != nil {
		return err
	}
	return failed
}

package delayserver

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// TestMain starts a server for the examples. Without the command only the tests that need no server run: examples cannot be skipped.
func TestMain(m *testing.M) {
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	program := os.Getenv("DELAYSERVER")
	if program == "" {
		flag.Parse()
		if chosen := flag.Lookup("test.run"); chosen.Value.String() == "" {
			if err := chosen.Value.Set("^Test"); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		return m.Run()
	}
	folder, err := os.MkdirTemp("", "delayserver-examples-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	server, err := launch(program, folder)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.kill()
	os.Setenv(addressVariable, server.address)
	return m.Run()
}

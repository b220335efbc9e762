// Package delayserver is a client for a delayserver: hand over a message now, get it when it is due.
//
// A Client is one connection. Its requests are pipelined, and any number of goroutines can share it.
// It does not reconnect: when the connection is lost, every call returns a NoReplyError, and the caller dials again.
// Send and SendColumns give each message an id and a due time once, so the same value can be sent again over a new connection.
//
// The client was written from PROTOCOL.md, the page of the wire protocol.
package delayserver

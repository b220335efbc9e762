// Package delayserver is a client for a delayserver: hand over a message now, get it when it is due.
//
// A Client has one connection at a time. Its requests are pipelined, and any number of goroutines can share it.
// When the connection is lost, it goes on at the same or the next address, and repeats the requests for which twice is as good as once.
// Send and SendColumns give each message an id and a due time once, so the same value can be sent again.
//
// Errors of a server are matched by name: errors.Is(err, delayserver.TooOld). A request without a reply is a NoReplyError.
//
// The client was written from PROTOCOL.md, the page of the wire protocol.
package delayserver

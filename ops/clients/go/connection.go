package delayserver

// The connection: who may have a request under way, who writes, who reads, and what a lost connection means for each caller.

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// A server takes 1,024 requests under way of a connection, and does not count some operations. Each pool has places of its own:
// pulls that wait do not hold up acks, and neither holds up a send.
const (
	pullsMax     = 768
	othersMax    = 256
	uncountedMax = 1024
)

var uncounted = map[string]bool{"hello": true, "ping": true, "status": true, "route": true, "send": true}

const (
	afterwardsTimeout = 30 * time.Second // for what the client does for a caller that has gone
	protocolVersion   = 1
)

// Limits of a server. All are inclusive.
type Limits struct {
	FrameBytesMax      int64 `msgpack:"frame_bytes_max"`
	FrameItemsMax      int64 `msgpack:"frame_items_max"`
	BatchMessagesMax   int64 `msgpack:"batch_messages_max"`
	BodyBytesMax       int64 `msgpack:"body_bytes_max"`
	SubjectBytesMax    int64 `msgpack:"subject_bytes_max"`
	MessageIDBytesMax  int64 `msgpack:"message_id_bytes_max"`
	PropertiesBytesMax int64 `msgpack:"properties_bytes_max"`
	DelayMsMax         int64 `msgpack:"delay_ms_max"`
	SubjectsMax        int64 `msgpack:"subjects_max"`
	GroupsMax          int64 `msgpack:"groups_max"`
	TagsMax            int64 `msgpack:"tags_max"`
	PullMessagesMax    int64 `msgpack:"pull_messages_max"`
	WaitMsMax          int64 `msgpack:"wait_ms_max"`
}

var limitsDefault = Limits{
	FrameBytesMax: 16777216, FrameItemsMax: 262144, BatchMessagesMax: 16384, BodyBytesMax: 1048576, SubjectBytesMax: 255,
	MessageIDBytesMax: 255, PropertiesBytesMax: 16384, DelayMsMax: 63244800000, SubjectsMax: 1000000, GroupsMax: 65536, TagsMax: 65536,
	PullMessagesMax: 16384, WaitMsMax: 60000,
}

// replyBytesMax is the length of the largest reply of a server with these limits.
func (l *Limits) replyBytesMax() int64 {
	const pullBytes, rows, rowBytes = 8 << 20, 16384, 512
	longest, most := int64(pullBytes), int64(rows)
	if one := l.BodyBytesMax + l.PropertiesBytesMax; one > longest {
		longest = one
	}
	if l.PullMessagesMax > most {
		most = l.PullMessagesMax
	}
	return longest + rowBytes*most
}

// Server is what hello tells.
type Server struct {
	ID       string `msgpack:"server_id"`
	Role     string `msgpack:"role"` // "server", or "broker": a node that only stores and delivers
	Software string `msgpack:"software"`
	Version  int64  `msgpack:"version"`
	Limits   Limits `msgpack:"limits"`
	ServerUs int64  `msgpack:"server_us"` // the server's clock at that moment
	Shards   int64  `msgpack:"shards"`    // of its cluster; 0: it is in none

	DelayLevelsMs []int64 `msgpack:"delay_levels_ms"` // level 1 is the first one
}

// request is one that the server has not answered yet.
type request struct {
	operation string
	answer    chan *reply   // room for one
	place     chan struct{} // the pool whose place it holds, or nil
	late      func(*reply)  // set when the caller has gone: takes the reply, and frees the place
	gone      bool
}

// connection is one connection to one server. It ends with the first fault, and never comes back.
type connection struct {
	conn    net.Conn
	address string
	server  Server
	frames  chan []byte // to the writer; without a buffer, so what waits is held by its callers
	done    chan struct{}
	spawn   func(func()) bool // starts a goroutine for which Close of the Client waits; false: the Client is closed

	pulls, others, free chan struct{}

	lock          sync.Mutex
	open          map[int64]*request
	lastID        int64
	lost          error
	retired       bool // it gets no more requests, and ends with the last one
	replyBytesMax int64

	clockLock sync.Mutex
	clock     reading
	steps     int // notices of a step of the server's clock
}

// connect opens one connection, says hello, and reads the server's clock. A server that refuses its hello is an error.
func connect(ctx context.Context, address string, options *Options, spawn func(func()) bool) (*connection, error) {
	conn, err := options.Dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		if err := keepAlive(tcp); err != nil {
			conn.Close()
			return nil, fmt.Errorf("TCP keep-alive cannot be switched on: %w", err)
		}
	}
	if options.TLS != nil {
		if conn, err = encrypted(ctx, conn, address, options.TLS); err != nil {
			return nil, err
		}
	}
	c := &connection{
		conn: conn, address: address, frames: make(chan []byte), done: make(chan struct{}), spawn: spawn, open: map[int64]*request{},
		pulls: make(chan struct{}, pullsMax), others: make(chan struct{}, othersMax), free: make(chan struct{}, uncountedMax),
		replyBytesMax: limitsDefault.replyBytesMax(),
	}
	c.server.Limits = limitsDefault
	if !spawn(c.write) || !spawn(c.read) {
		c.fail(ErrClosed)
		return nil, c.failure()
	}
	if err := c.greet(ctx, options.Name, options.Token); err != nil {
		c.fail(err)
		return nil, err
	}
	return c, nil
}

// encrypted does the handshake. It closes the connection if that fails.
func encrypted(ctx context.Context, conn net.Conn, address string, config *tls.Config) (net.Conn, error) {
	if config.ServerName == "" && !config.InsecureSkipVerify {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			conn.Close()
			return nil, err
		}
		config = config.Clone()
		config.ServerName = host
	}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secured, nil
}

func (c *connection) greet(ctx context.Context, name, token string) error {
	look := reading{sentUs: localUs(), wall: time.Now().Round(0)}
	server := Server{Limits: limitsDefault}
	if err := c.call(ctx, "hello", helloArguments(name, token), &server); err != nil {
		return err
	}
	look.serverUs, look.tripUs = server.ServerUs, localUs()-look.sentUs+1
	look, err := c.readClock(ctx, look, readingsMore)
	if err != nil {
		return err
	}
	c.clockLock.Lock()
	if c.steps == 0 { // otherwise the reading can be from before a step
		c.clock = look
	}
	c.clockLock.Unlock()
	c.lock.Lock()
	c.server, c.replyBytesMax = server, server.Limits.replyBytesMax()
	c.lock.Unlock()
	return nil
}

func helloArguments(name, token string) map[string]any {
	arguments := map[string]any{"versions": []int{protocolVersion}, "client": name, "notices": true}
	if token != "" {
		arguments["token"] = token
	}
	return arguments
}

// failure is nil while the connection stands.
func (c *connection) failure() error {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.lost
}

func (c *connection) fail(reason error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.lost == nil {
		c.lost = &lostError{reason}
		close(c.done)
		c.conn.Close()
	}
}

// retire ends the connection when the requests under way have their replies.
func (c *connection) retire() {
	c.lock.Lock()
	c.retired = true
	idle := len(c.open) == 0
	c.lock.Unlock()
	if idle {
		c.fail(errRetired)
	}
}

// write takes frames from callers, each to its last byte, and flushes when no further one is at hand.
func (c *connection) write() {
	buffered := bufio.NewWriterSize(c.conn, 64<<10)
	for {
		var frame []byte
		select {
		case frame = <-c.frames:
		case <-c.done:
			return
		}
		for frame != nil {
			if _, err := buffered.Write(frame); err != nil {
				c.fail(err)
				return
			}
			select {
			case frame = <-c.frames:
			default:
				frame = nil
			}
		}
		if err := buffered.Flush(); err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *connection) read() {
	buffered := bufio.NewReaderSize(c.conn, 64<<10)
	for {
		answer, err := c.readReply(buffered)
		if err != nil {
			c.fail(err)
			return
		}
		if answer.id == 0 && answer.err == nil {
			c.takeNotice(answer)
			continue
		}
		if answer.id == 0 {
			c.fail(answer.err)
			return
		}
		if !c.hand(answer) {
			c.fail(fmt.Errorf("the server answered the request %d, which is not open", answer.id))
			return
		}
	}
}

// takeNotice reads what the server says without being asked. It knows one notice; a client ignores the others.
func (c *connection) takeNotice(notice *reply) {
	var fields struct {
		ClockSteppedUs *int64 `msgpack:"clock_stepped_us"`
	}
	if err := msgpack.Unmarshal(notice.result, &fields); err != nil || fields.ClockSteppedUs == nil {
		return
	}
	c.clockLock.Lock()
	c.clock = reading{}
	c.steps++
	c.clockLock.Unlock()
}

func (c *connection) readReply(from io.Reader) (*reply, error) {
	var header [4]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return nil, err
	}
	length := int64(binary.LittleEndian.Uint32(header[:]))
	c.lock.Lock()
	most := c.replyBytesMax
	c.lock.Unlock()
	if length > most {
		return nil, fmt.Errorf("a frame of %d bytes came, the largest reply has %d; is this the port of a delayserver?", length, most)
	}
	payload := make([]byte, length)
	if _, err := io.ReadFull(from, payload); err != nil {
		return nil, err
	}
	return decodeReply(payload)
}

// hand gives a reply to whom it belongs.
func (c *connection) hand(answer *reply) bool {
	c.lock.Lock()
	open := c.open[answer.id]
	delete(c.open, answer.id)
	gone := open != nil && open.gone
	ends := c.retired && len(c.open) == 0
	c.lock.Unlock()
	if ends {
		defer c.fail(errRetired)
	}
	switch {
	case open == nil:
		return false
	case gone && open.late != nil:
		if !c.spawn(func() { open.late(answer) }) {
			open.leave()
		}
	default:
		open.answer <- answer
		open.leave()
	}
	return true
}

func (r *request) leave() {
	if r.place != nil {
		<-r.place
	}
}

func (c *connection) placeFor(operation string) chan struct{} {
	switch {
	case operation == "pull":
		return c.pulls
	case uncounted[operation]:
		return c.free
	}
	return c.others
}

func (c *connection) call(ctx context.Context, operation string, arguments map[string]any, result any) error {
	id, open, err := c.begin(ctx, operation, arguments, c.placeFor(operation))
	if err != nil {
		return err
	}
	answer, err := c.wait(ctx, id, open, nil)
	if err != nil {
		return err
	}
	return decodeResult(operation, answer, result)
}

func decodeResult(operation string, answer *reply, result any) error {
	if answer.err != nil {
		return answer.err
	}
	if err := msgpack.Unmarshal(answer.result, result); err != nil {
		return fmt.Errorf("the reply to %s is not what the protocol says: %w", operation, err)
	}
	return nil
}

// begin takes a place and hands the frame to the writer. An error of begin means that the server saw nothing of the request.
func (c *connection) begin(ctx context.Context, operation string, arguments map[string]any, place chan struct{}) (int64, *request, error) {
	if err := ctx.Err(); err != nil {
		return 0, nil, &NoReplyError{Operation: operation, Cause: err}
	}
	if place != nil {
		select {
		case place <- struct{}{}:
		case <-ctx.Done():
			return 0, nil, &NoReplyError{Operation: operation, Cause: ctx.Err()}
		case <-c.done:
			return 0, nil, &NoReplyError{Operation: operation, Cause: c.failure()}
		}
	}
	open := &request{operation: operation, answer: make(chan *reply, 1), place: place}
	c.lock.Lock()
	c.lastID++
	id, most := c.lastID, c.server.Limits.FrameBytesMax
	c.open[id] = open
	c.lock.Unlock()
	frame, err := encodeRequest(id, operation, arguments)
	if err == nil && int64(len(frame)-4) > most {
		err = &Error{Name: FrameTooLarge, Message: fmt.Sprintf("the request has %d bytes, a frame at most %d; send smaller batches", len(frame)-4, most)}
	}
	if err == nil {
		select {
		case c.frames <- frame:
			return id, open, nil
		case <-ctx.Done():
			err = &NoReplyError{Operation: operation, Cause: ctx.Err()}
		case <-c.done:
			err = &NoReplyError{Operation: operation, Cause: c.failure()}
		}
	}
	c.lock.Lock()
	delete(c.open, id)
	c.lock.Unlock()
	open.leave()
	return 0, nil, err
}

// wait ends with the reply, with ctx, or with the connection. After ctx has ended, late takes the reply instead.
func (c *connection) wait(ctx context.Context, id int64, open *request, late func(*reply)) (*reply, error) {
	var cause error
	select {
	case answer := <-open.answer:
		return answer, nil
	case <-ctx.Done():
		cause = ctx.Err()
	case <-c.done:
		cause = c.failure()
	}
	c.lock.Lock()
	_, unanswered := c.open[id]
	if unanswered {
		open.gone, open.late = true, late
	}
	c.lock.Unlock()
	if !unanswered {
		return <-open.answer, nil // it came at the same moment
	}
	return nil, &NoReplyError{Operation: open.operation, MaybeDone: true, Cause: cause}
}

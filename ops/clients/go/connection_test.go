package delayserver

// What a connection does with a peer that a real server seldom is. The peer is a script on a real socket.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

type peer struct {
	t    *testing.T
	conn net.Conn
}

// request reads one frame of the client.
func (p *peer) request() (id int64, operation string, arguments map[string]any) {
	header := make([]byte, 4)
	if _, err := io.ReadFull(p.conn, header); err != nil {
		return 0, "", nil
	}
	payload := make([]byte, binary.LittleEndian.Uint32(header))
	if _, err := io.ReadFull(p.conn, payload); err != nil {
		return 0, "", nil
	}
	whole := value(p.t, payload).([]any)
	return whole[0].(int64), whole[1].(string), whole[2].(map[string]any)
}

func (p *peer) answer(parts ...any) {
	payload, err := msgpack.Marshal(parts)
	if err != nil {
		p.t.Error(err)
	}
	p.frame(payload)
}

func (p *peer) frame(payload []byte) {
	header := make([]byte, 4)
	binary.LittleEndian.PutUint32(header, uint32(len(payload)))
	_, _ = p.conn.Write(append(header, payload...))
}

func (p *peer) greet() {
	id, _, _ := p.request()
	p.answer(id, true, map[string]any{"version": 1, "server_id": "5f3a9c0d2b71", "server_us": 1799999940000000, "role": "server", "limits": map[string]any{}})
}

// listenFor runs script for each connection that comes, and returns the address.
func listenFor(t *testing.T, script func(p *peer, number int)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for number := 0; ; number++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			script(&peer{t, conn}, number)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-ended
	})
	return listener.Addr().String()
}

// scripted connects a client, which repeats nothing, with a peer that runs script.
func scripted(t *testing.T, script func(*peer)) *Client {
	t.Helper()
	address := listenFor(t, func(p *peer, number int) {
		if number == 0 {
			script(p)
		}
	})
	return dialed(t, address, Options{Retries: -1})
}

func dialed(t *testing.T, addresses string, options Options) *Client {
	t.Helper()
	client, err := Dial(patient(t), addresses, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func pingError(t *testing.T, script func(p *peer, id int64)) error {
	t.Helper()
	client := scripted(t, func(p *peer) {
		p.greet()
		id, _, _ := p.request()
		script(p, id)
	})
	_, err := client.Ping(patient(t))
	return err
}

func TestAPeerThatBreaksTheProtocolIsALostConnection(t *testing.T) {
	for name, script := range map[string]func(p *peer, id int64){
		"a foreign id":        func(p *peer, id int64) { p.answer(id+1, true, map[string]any{}) },
		"no reply":            func(p *peer, id int64) { p.frame([]byte{7}) },
		"an end":              func(p *peer, id int64) {},
		"a frame that is cut": func(p *peer, id int64) { _, _ = p.conn.Write([]byte{9, 0, 0, 0, 0x93}) },
		"deep nesting":        func(p *peer, id int64) { p.frame(append([]byte{0x93, 1, 0xc3}, bytes.Repeat([]byte{0x91}, 1<<20)...)) },
		"a frame of 4 GiB":    func(p *peer, id int64) { _, _ = p.conn.Write([]byte{255, 255, 255, 255}) },
	} {
		err := pingError(t, script)
		var without *NoReplyError
		if !errors.As(err, &without) || !without.MaybeDone || !errors.Is(err, ErrConnectionLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnErrorWithTheIdZeroEndsTheConnectionAndIsNamed(t *testing.T) {
	err := pingError(t, func(p *peer, id int64) {
		p.answer(0, false, map[string]any{"error": FrameTimeout, "message": "too slow"})
	})
	if NameOf(err) != FrameTimeout || !errors.Is(err, ErrConnectionLost) {
		t.Error(err)
	}
}

func TestANameThatIsNotKnownIsFinal(t *testing.T) {
	err := pingError(t, func(p *peer, id int64) {
		p.answer(id, false, map[string]any{"error": "novel", "message": "new", "retry_after_ms": 5, "more": []int{1}})
	})
	var named *Error
	if !errors.As(err, &named) || named.Again() || named.RetryAfter != 5*time.Millisecond {
		t.Error(err)
	}
}

func TestAServerThatIsNotReadyIsAskedAgain(t *testing.T) {
	client := dialed(t, listenFor(t, func(p *peer, number int) {
		if number < 5 {
			id, _, _ := p.request()
			p.answer(id, false, map[string]any{"error": NotReady, "message": "recovering", "retry_after_ms": 1})
			return
		}
		p.greet()
		p.request()
	}), Options{})
	if server := client.Server(); server.ID != "5f3a9c0d2b71" || server.Limits.FrameItemsMax != 262144 {
		t.Errorf("%+v", server)
	}
}

func TestAMessageThatComesForACallerThatHasGoneIsGivenBack(t *testing.T) {
	pulling, cancel := context.WithCancel(patient(t))
	nacked := make(chan map[string]any, 1)
	client := scripted(t, func(p *peer) {
		p.greet()
		pull, _, _ := p.request()
		cancel()
		id, operation, arguments := p.request()
		if operation != "cancel_wait" || arguments["id"] != pull {
			t.Error(operation, arguments)
		}
		p.answer(id, true, map[string]any{"ended": false})
		p.answer(pull, true, map[string]any{
			"count": 1, "subject": "s", "server_ids": []string{"5f3a9c0d2b71"}, "server_index": 0, "sequence": 7, "due_ms": 1, "accepted_us": 1,
			"dispatched_us": 1, "attempt": 1, "message_ids": []byte{}, "message_id_length": 0, "properties": []byte{}, "properties_length": 0,
			"bodies": []byte("x"), "body_length": 1, "delivery": 99,
		})
		id, operation, arguments = p.request()
		if operation != "nack" {
			t.Error(operation)
		}
		p.answer(id, true, map[string]any{"nacked": 1, "unknown": 0})
		nacked <- arguments
	})
	if _, err := client.Pull(pulling, Pull{Subject: "s", Group: "g", Wait: time.Minute}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if arguments := <-nacked; arguments["deliveries"] != int64(99) || arguments["delay_ms"] != int64(0) || arguments["unseen"] != true || arguments["group"] != "g" {
		t.Error(arguments)
	}
}

func TestAColumnOfCountlessRowsIsRefused(t *testing.T) {
	client := scripted(t, func(p *peer) {
		p.greet()
		id, _, _ := p.request()
		p.answer(id, true, map[string]any{"count": int64(1) << 50, "subject": "s", "sequence": 7})
		p.request()
	})
	if rows, err := client.Pull(patient(t), Pull{Subject: "s", Group: "g"}); err == nil {
		t.Error(rows)
	}
}

func TestTheEndOfAContextEndsACallAndItsPlaceStaysTakenUntilTheReply(t *testing.T) {
	acking, cancel := context.WithCancel(patient(t))
	release := make(chan struct{})
	client := scripted(t, func(p *peer) {
		p.greet()
		ack, _, _ := p.request()
		cancel()
		<-release
		p.answer(ack, true, map[string]any{"acked": 1, "unknown": 0})
		ping, _, _ := p.request()
		p.answer(ping, true, map[string]any{"server_us": 5})
		p.request()
	})
	_, err := client.Ack(acking, Received{Stored: Stored{Subject: "s"}, Group: "g", Node: "5f3a9c0d2b71", Delivery: 1})
	var without *NoReplyError
	if !errors.Is(err, context.Canceled) || !errors.As(err, &without) || !without.MaybeDone || len(client.current.others) != 1 {
		t.Error(err, len(client.current.others))
	}
	close(release)
	if _, err := client.Ping(patient(t)); err != nil || len(client.current.others) != 0 {
		t.Error(err, len(client.current.others))
	}
}

func TestAClosedClientSaysSo(t *testing.T) {
	client := scripted(t, func(p *peer) {
		p.greet()
		p.request()
	})
	client.Close()
	_, err := client.Ping(patient(t))
	var without *NoReplyError
	if !errors.As(err, &without) || without.MaybeDone || !errors.Is(err, ErrClosed) || !errors.Is(err, ErrConnectionLost) {
		t.Error(err)
	}
}

// refuse answers the next request with an error.
func (p *peer) refuse(name ErrorName, more ...any) string {
	id, operation, _ := p.request()
	p.answer(id, false, map[string]any{"error": name, "message": "no", "retry_after_ms": 1})
	return operation
}

func TestErrorsThatMayPassAreRepeated(t *testing.T) {
	for _, name := range []ErrorName{RateLimited, QueueFull, NotReady, DiskFull, ShuttingDown} {
		name := name
		client := dialed(t, listenFor(t, func(p *peer, number int) {
			p.greet()
			for try := 0; try < 3; try++ {
				if operation := p.refuse(name); operation != "cancel" {
					t.Error(name, operation)
				}
			}
			id, _, _ := p.request()
			p.answer(id, true, map[string]any{"results": []any{map[string]any{"receipt": "r", "outcome": Cancelled}}})
			p.request()
		}), Options{})
		if states, err := client.Cancel(patient(t), "r"); err != nil || states[0].Outcome != Cancelled {
			t.Error(name, states, err)
		}
		client.Close()
	}
}

func TestAnItemThatMayPassIsRepeatedAndKeepsItsIDAndDueTime(t *testing.T) {
	rows := make(chan any, 2)
	client := dialed(t, listenFor(t, func(p *peer, number int) {
		p.greet()
		id, _, arguments := p.request()
		rows <- arguments["messages"]
		p.answer(id, true, map[string]any{"results": []any{map[string]any{"error": RateLimited, "message": "slowly", "retry_after_ms": 1}}})
		id, _, arguments = p.request()
		rows <- arguments["messages"]
		p.answer(id, true, map[string]any{"results": []any{map[string]any{"receipt": "r", "message_id": "i", "due_ms": 5}}})
		p.request()
	}), Options{})
	sent, err := client.Send(patient(t), &Message{Subject: "s", Delay: time.Hour})
	if err != nil || sent.Receipt != "r" || len(rows) != 2 {
		t.Fatal(sent, err, len(rows))
	}
	if first, second := <-rows, <-rows; !reflect.DeepEqual(first, second) {
		t.Error(first, second)
	}
}

func TestErrorsThatStayAreNotRepeated(t *testing.T) {
	for _, name := range []ErrorName{TooOld, Forbidden, PositionOutOfRange, InternalError, "novel"} {
		client := dialed(t, listenFor(t, func(p *peer, number int) {
			p.greet()
			p.refuse(name)
			if _, operation, _ := p.request(); operation != "" {
				t.Error(name, "is repeated")
			}
		}), Options{})
		if _, err := client.Cancel(patient(t), "r"); !errors.Is(err, name) {
			t.Error(name, err)
		}
		client.Close()
	}
}

func TestRetriesHaveABound(t *testing.T) {
	asked := make(chan string, 100)
	client := dialed(t, listenFor(t, func(p *peer, number int) {
		p.greet()
		for id, operation, _ := p.request(); operation != ""; id, operation, _ = p.request() {
			asked <- operation
			p.answer(id, false, map[string]any{"error": QueueFull, "message": "no", "retry_after_ms": 1})
		}
	}), Options{Retries: 2})
	if _, err := client.Cancel(patient(t), "r"); !errors.Is(err, QueueFull) {
		t.Error(err)
	}
	if len(asked) != 3 {
		t.Error(len(asked))
	}
}

func TestALostConnectionIsRepeatedOnlyWhereTwiceIsAsOnce(t *testing.T) {
	asked := make(chan string, 100)
	client := dialed(t, listenFor(t, func(p *peer, number int) {
		p.greet()
		if _, operation, _ := p.request(); operation != "" {
			asked <- operation
		}
	}), Options{})
	ctx := patient(t)
	_, err := client.Publish(ctx, &Message{Subject: "s"})
	var without *NoReplyError
	if !errors.As(err, &without) || !without.MaybeDone || !errors.Is(err, ErrConnectionLost) || len(asked) != 1 {
		t.Fatal(err, len(asked))
	}
	<-asked
	if _, err := client.Cancel(ctx, "r"); !errors.As(err, &without) || !without.MaybeDone || len(asked) != 1+retriesDefault {
		t.Error(err, len(asked))
	}
}

func TestARefusalBehindAnAttemptWithoutReplyStaysInDoubt(t *testing.T) {
	client := dialed(t, listenFor(t, func(p *peer, number int) {
		p.greet()
		if number == 0 {
			p.request()
			return
		}
		p.refuse(TooOld)
		p.request()
	}), Options{})
	_, err := client.Send(patient(t), &Message{Subject: "s", ID: "i", Due: time.UnixMilli(5)})
	var without *NoReplyError
	if !errors.Is(err, TooOld) || !errors.As(err, &without) || !without.MaybeDone {
		t.Error(err)
	}
}

func TestTheNextAddressIsTakenWhereOneFails(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	first := listenFor(t, func(p *peer, number int) {
		if number == 0 {
			p.greet()
		}
	})
	second := listenFor(t, func(p *peer, number int) {
		p.greet()
		id, _, _ := p.request()
		p.answer(id, true, map[string]any{"server_us": 5})
		p.request()
	})
	client := dialed(t, closed.Addr().String()+", "+first+", "+second, Options{})
	if client.Address() != first {
		t.Fatal(client.Address())
	}
	if _, err := client.Ping(patient(t)); err != nil || client.Address() != second {
		t.Error(err, client.Address())
	}
}

func TestASilentAddressIsPassedOver(t *testing.T) {
	release := make(chan struct{})
	silent := listenFor(t, func(p *peer, number int) { <-release })
	t.Cleanup(func() { close(release) })
	good := listenFor(t, func(p *peer, number int) {
		p.greet()
		p.request()
	})
	client := dialed(t, silent+","+good, Options{ConnectTimeout: time.Second})
	if client.Address() != good {
		t.Error(client.Address())
	}
}

func TestNoServerNamesEveryAddress(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	_, err = Dial(patient(t), address+","+address, Options{})
	var none *ConnectError
	var refused *net.OpError
	if !errors.As(err, &none) || len(none.Causes) != 2 || !errors.Is(err, ErrConnectionLost) || !errors.As(err, &refused) {
		t.Error(err)
	}
	for _, bad := range []string{"nonsense", " , "} {
		if _, err := Dial(patient(t), bad, Options{}); err == nil {
			t.Error(bad)
		}
	}
}

func TestASteppedClockIsReadAgain(t *testing.T) {
	client := scripted(t, func(p *peer) {
		p.greet()
		p.answer(0, true, map[string]any{"novel": 1, "clock_stepped_us": 1799999940000000})
		for serverUs := int64(1); ; serverUs++ {
			id, operation, _ := p.request()
			if operation == "" {
				return
			}
			p.answer(id, true, map[string]any{"server_us": serverUs * 1000})
		}
	})
	// The reply to the ping comes behind the notice. The next reading is the second one, at 2 ms of the server's clock.
	if _, err := client.Ping(patient(t)); err != nil {
		t.Fatal(err)
	}
	message := &Message{Subject: "s", Delay: time.Second}
	if err := client.Resolve(patient(t), message); err != nil || message.Due.Year() != 1970 {
		t.Error(message.Due, err)
	}
}

func TestDeliveriesOfAnotherServerAreNotSettledHere(t *testing.T) {
	client := scripted(t, func(p *peer) {
		p.greet()
		id, operation, arguments := p.request()
		if operation != "ack" || arguments["deliveries"] != int64(7) || arguments["count"] != int64(1) {
			t.Error(operation, arguments)
		}
		p.answer(id, true, map[string]any{"acked": 1, "unknown": 0})
		p.request()
	})
	here := Received{Stored: Stored{Subject: "s"}, Group: "g", Node: "5f3a9c0d2b71", Delivery: 7}
	there := here
	there.Node, there.Delivery = "ffffffffffff", 8
	if acked, err := client.Ack(patient(t), here, there); err != nil || acked != (Acked{Acked: 1, Unknown: 1}) {
		t.Error(acked, err)
	}
}

// expectNoGoroutines fails if a goroutine runs code of the client. One that has said its last word may need a moment to be gone.
func expectNoGoroutines(t *testing.T) {
	t.Helper()
	buffer := make([]byte, 1<<20)
	for ctx := patient(t); ; time.Sleep(time.Millisecond) {
		stacks := string(buffer[:runtime.Stack(buffer, true)])
		if !strings.Contains(stacks, "(*connection)") && !strings.Contains(stacks, "(*Client)") {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("goroutines are left\n%s", stacks)
		}
	}
}

func TestCloseEndsAllGoroutines(t *testing.T) {
	pulling, cancel := context.WithCancel(patient(t))
	pulled := make(chan struct{})
	client := scripted(t, func(p *peer) {
		p.greet()
		p.request()
		close(pulled)
		for _, operation, _ := p.request(); operation != ""; _, operation, _ = p.request() {
		}
	})
	ended := make(chan error)
	go func() {
		_, err := client.Pull(pulling, Pull{Subject: "s", Group: "g", Wait: time.Minute})
		ended <- err
	}()
	<-pulled
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	client.Close() // a goroutine waits for the answer to cancel_wait, which never comes
	expectNoGoroutines(t)
	if _, err := Dial(patient(t), "127.0.0.1:1", Options{Retries: -1}); err == nil {
		t.Error("a server at port 1")
	}
	expectNoGoroutines(t)
}

func TestCloseWaitsForTheLastGoroutine(t *testing.T) {
	client := scripted(t, func(p *peer) {
		p.greet()
		p.request()
	})
	ended := false
	client.spawn(func() {
		<-client.life.Done()
		time.Sleep(20 * time.Millisecond)
		ended = true
	})
	client.Close()
	if !ended || client.spawn(func() {}) {
		t.Error("a goroutine outlives Close, or begins behind it")
	}
}

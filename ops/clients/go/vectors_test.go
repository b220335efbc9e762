package delayserver

// The vectors of PROTOCOL.md, as far as a client can check them without a server.

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

type badFrame struct {
	Name     string    `json:"name"`
	HexParts [][2]any  `json:"hex_parts"`
	ID       int64     `json:"id"`
	Error    ErrorName `json:"error"`
	Closes   bool      `json:"closes"`
}

func (b *badFrame) bytes(t *testing.T) []byte {
	var frame []byte
	for _, part := range b.HexParts {
		times, _ := part[1].(json.Number).Int64()
		frame = append(frame, bytes.Repeat(unhex(t, part[0].(string)), int(times))...)
	}
	return frame
}

type vectors struct {
	Frames []struct {
		Name, Hex string
		Value     any
	}
	BadFrames []badFrame `json:"bad_frames"`
	Columns   []struct {
		Name, Type, Hex, Error string
		Count                  int
		Rows                   []any
	}
	Ragged []struct {
		Name, Bytes, Lengths, Error string
		Count                       int
		Rows                        []string
	}
	Receipts []struct {
		ServerID  string `json:"server_id"`
		DueMs     int64  `json:"due_ms"`
		Sequence  int64
		Receipt   Receipt
		DerivedID string `json:"derived_message_id"`
	}
	BadReceipts []Receipt `json:"bad_receipts"`
	Clocks      []struct {
		SentUs   int64 `json:"sent_us"`
		ServerUs int64 `json:"server_us"`
		NowUs    int64 `json:"now_us"`
		DelayMs  int64 `json:"delay_ms"`
		DueMs    int64 `json:"due_ms"`
	}
}

func readVectors(t *testing.T) *vectors {
	t.Helper()
	text, err := os.ReadFile("../../../delayserver/protocol/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var all vectors
	if err := decoder.Decode(&all); err != nil {
		t.Fatal(err)
	}
	return &all
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// fromJSON gives a value of the vectors the form in which plain decodes it.
func fromJSON(t *testing.T, value any) any {
	switch value := value.(type) {
	case json.Number:
		if number, err := value.Int64(); err == nil {
			return number
		}
		number, err := value.Float64()
		if err != nil {
			t.Fatal(err)
		}
		return number
	case []any:
		list := make([]any, len(value))
		for index := range value {
			list[index] = fromJSON(t, value[index])
		}
		return list
	case map[string]any:
		if text, ok := value["$bytes"]; ok {
			return unhex(t, text.(string))
		}
		if text, ok := value["$int"]; ok {
			return fromJSON(t, json.Number(text.(string)))
		}
		result := map[string]any{}
		for key := range value {
			result[key] = fromJSON(t, value[key])
		}
		return result
	}
	return value
}

// value decodes a payload without types. Integers are int64.
func value(t *testing.T, payload []byte) any {
	t.Helper()
	decoder := msgpack.NewDecoder(bytes.NewReader(payload))
	result, err := decoder.DecodeInterface()
	if err != nil {
		t.Fatal(err)
	}
	return signed(result)
}

func signed(value any) any {
	switch value := value.(type) {
	case int8, int16, int32, uint8, uint16, uint32, uint64:
		if number := reflect.ValueOf(value); number.CanInt() {
			return number.Int()
		}
		return int64(reflect.ValueOf(value).Uint())
	case []any:
		for index := range value {
			value[index] = signed(value[index])
		}
	case map[string]any:
		for key := range value {
			value[key] = signed(value[key])
		}
	}
	return value
}

func payloadOf(t *testing.T, frame []byte) []byte {
	t.Helper()
	if len(frame) < 4 || int(binary.LittleEndian.Uint32(frame)) != len(frame)-4 {
		t.Fatalf("the length of the frame does not fit: %x", frame)
	}
	return frame[4:]
}

func (v *vectors) frame(t *testing.T, name string) ([]byte, any) {
	t.Helper()
	for _, frame := range v.Frames {
		if frame.Name == name {
			return payloadOf(t, unhex(t, frame.Hex)), fromJSON(t, frame.Value)
		}
	}
	t.Fatalf("there is no vector %q", name)
	return nil, nil
}

func TestEveryFrameIsReadAsItsValue(t *testing.T) {
	for _, frame := range readVectors(t).Frames {
		payload := payloadOf(t, unhex(t, frame.Hex))
		if err := checkValue(payload); err != nil {
			t.Errorf("%s: %v", frame.Name, err)
		}
		if got, want := value(t, payload), fromJSON(t, frame.Value); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", frame.Name, got, want)
		}
		if !strings.HasSuffix(frame.Name, " reply") {
			continue
		}
		answer, err := decodeReply(payload)
		if err != nil {
			t.Errorf("%s: %v", frame.Name, err)
			continue
		}
		whole := fromJSON(t, frame.Value).([]any)
		if answer.id != whole[0] || (answer.err == nil) != whole[1] {
			t.Errorf("%s: the envelope is %+v", frame.Name, answer)
		}
	}
}

func TestErrorsCarryNameMessageAndPause(t *testing.T) {
	all := readVectors(t)
	payload, _ := all.frame(t, "error reply")
	answer, err := decodeReply(payload)
	if err != nil || answer.id != 28 || !reflect.DeepEqual(answer.err, &Error{Name: NotReady, Message: "recovering", RetryAfter: 200 * time.Millisecond}) {
		t.Fatal(answer, err)
	}
}

func TestRequestsAreThoseOfTheVectors(t *testing.T) {
	due := time.UnixMilli(1800000000000)
	move := time.UnixMilli(1800000060000)
	receipt := Receipt("5f3a9c0d2b71-01a3185c5000-00000000002a")
	columns := &Batch{
		Subject: "orders", Bodies: [][]byte{[]byte("a"), []byte("bb"), []byte("ccc")},
		Due: []time.Time{due, due.Add(5 * time.Millisecond), due.Add(time.Millisecond)},
	}
	columnsWire, err := columns.wire()
	if err != nil {
		t.Fatal(err)
	}
	subjects := &Batch{
		Subjects: []string{"orders", "bills"}, Bodies: [][]byte{[]byte("a"), []byte("b")}, Due: []time.Time{due, due},
		IDs: []string{"o-2", ""}, Properties: []map[string]string{nil, {"trace": "7"}}, Expires: make([]time.Time, 2),
	}
	subjectsWire, err := subjects.wire()
	if err != nil {
		t.Fatal(err)
	}
	delete(subjectsWire, "due_ms") // the client makes due times of delays; the vector has the delay
	subjectsWire["delay_ms"] = 1000
	send := (&Message{Subject: "orders", Body: []byte{0, 255}, Due: due, Properties: map[string]string{"trace": "7"}, Expires: move}).wire()
	delete(send, "message_id")
	again := (&Message{Subject: "orders", Body: []byte("hi again"), Due: due, ID: "o-1"}).wire()
	prepared := (&Message{Subject: "orders", Body: []byte("paid"), Due: due, ID: "o-1"}).wire()
	terms := Transaction{Group: "shop", CheckAfter: 30 * time.Second, ChecksMax: Some(5), Policy: PolicyRollback}
	second := Receipt("5f3a9c0d2b71-01a3185d3a60-000000000030")
	published := (&Message{Subject: "orders", Body: []byte("hi"), Tag: "paid", OrderKey: "o-1"}).withoutTime()
	tagged, err := (&Batch{
		Subject: "orders", Bodies: [][]byte{[]byte("a"), []byte("bb"), []byte("ccc")}, Tags: []string{"paid", "", "new"},
	}).withoutTimes()
	if err != nil {
		t.Fatal(err)
	}
	numbers, err := (&Numbers{ServerID: "5f3a9c0d2b71", Sequence: []int64{43, 44, 45}, DueMs: []int64{1800000000000, 1800000000005, 1800000000001}}).wire()
	if err != nil {
		t.Fatal(err)
	}
	hello := helloArguments("example", "")
	delete(hello, "notices") // the vector is of a client without them
	delivery := []int64{11258999068426240}
	const node = "5f3a9c0d2b71"
	leased := Received{Stored: Stored{Subject: "orders"}, Group: "billing", Node: node, Delivery: delivery[0]}
	next, foreign := leased, leased
	next.Delivery++
	foreign.Node = "ffffffffffff"
	query := DeadLetterQuery{Max: 10}
	resend := (&ResendOptions{Max: 100, Rate: 50}).wire("orders", "billing")
	resend["rate"] = int64(50) // a float and an integer of the same number are the same to a server
	extend := settle("orders", "billing", delivery)
	for field, value := range (&ExtendOptions{AckTimeout: 30 * time.Second, Outlive: 2 * time.Second}).wire() {
		extend[field] = value
	}
	policy := groupArguments("orders", "billing")
	policy["set"] = (&Policy{Attempts: Some(5), FirstMs: Some(int64(1000)), CapMs: Some(int64(60000))}).wire()
	pull := Pull{Subject: "orders", Group: "billing", Max: 1000, Wait: time.Second, Ack: []Received{leased, foreign, next}}
	nack := settle("orders", "billing", delivery)
	for field, value := range (&NackOptions{Delay: 5 * time.Second}).wire() {
		nack[field] = value
	}
	for name, arguments := range map[string]map[string]any{
		"hello request":                    hello,
		"ping request":                     {},
		"send rows request":                {"messages": []any{send, map[string]any{"subject": "", "body": "x", "due_ms": due.UnixMilli()}}},
		"send columns request":             columnsWire,
		"send columns of subjects request": subjectsWire,
		"cancel request":                   {"receipts": []Receipt{receipt}},
		"cancel names request":             {"messages": names([]Name{{"orders", "o-1", due}})},
		"lookup request":                   {"receipts": []Receipt{receipt, "nonsense"}},
		"reschedule request":               {"items": []any{(&Move{Receipt: receipt, Body: []byte("later")}).wire(move.UnixMilli())}},
		"pull columns request":             pull.wire(node),
		"send again request":               {"messages": []any{again}, "tell_duplicates": true},
		"publish rows request":             {"messages": []any{published}},
		"publish columns request":          tagged,
		"prepare request":                  terms.terms(map[string]any{"messages": []any{prepared}}),
		"commit request":                   {"receipts": []Receipt{receipt, second}},
		"rollback request":                 {"receipts": []Receipt{second}},
		"cancel columns request":           numbers,
		"lookup columns request":           numbers,
		"pending subjects request":         {"by": "subject", "after": int64(12)},
		"metrics request":                  {},
		"token request":                    (&NewToken{Roles: []string{"send"}, Subjects: []string{"orders*"}, Name: "shop", Rate: 500}).wire(),
		"transactions request":             openArguments("1800000000000.2.46", 100),
		"extend request":                   extend,
		"group request":                    groupArguments("orders", "billing"),
		"seek request":                     Earliest.seek(groupArguments("orders", "billing")),
		"seek to a time request":           AtTime(due).seek(groupArguments("orders", "billing")),
		"remove_group request":             groupArguments("orders", "billing"),
		"read request":                     (&Read{Subject: "orders", Position: 1}).wire(),
		"read behind the end request":      (&Read{Subject: "orders", Position: 9}).wire(),
		"find request":                     (&Find{ID: "o-1", Subject: "orders", Max: 10}).wire(),
		"subjects request":                 (&SubjectQuery{Pattern: "orders*", After: 12}).wire(),
		"policy request":                   policy,
		"dead_letters request":             query.wire("orders", "billing"),
		"dead_letters resend request":      resend,
		"ack request":                      settle("orders", "billing", delivery),
		"nack request":                     nack,
		"cancel_wait request":              {"id": 3},
		"groups request":                   {"subject": "orders", "max": 1},
		"route request":                    {"subject": "orders"},
		"status request":                   {},
	} {
		_, want := readVectors(t).frame(t, name)
		whole := want.([]any)
		frame, err := encodeRequest(whole[0].(int64), whole[1].(string), arguments)
		if err != nil {
			t.Fatal(name, err)
		}
		if got := value(t, payloadOf(t, frame)); !reflect.DeepEqual(textBodies(got), textBodies(want)) {
			t.Errorf("%s:\n got %v\nwant %v", name, got, want)
		}
	}
}

// textBodies makes a body of bytes one of text: both are the same to a server.
func textBodies(value any) any {
	switch value := value.(type) {
	case []any:
		for index := range value {
			value[index] = textBodies(value[index])
		}
	case map[string]any:
		for key := range value {
			if data, ok := value[key].([]byte); ok && key == "body" {
				value[key] = string(data)
			} else {
				value[key] = textBodies(value[key])
			}
		}
	}
	return value
}

func TestPulledColumnsBecomeMessages(t *testing.T) {
	payload, _ := readVectors(t).frame(t, "pull columns reply")
	answer, err := decodeReply(payload)
	if err != nil {
		t.Fatal(err)
	}
	const server = "5f3a9c0d2b71"
	rows, err := decodePulled(&Pull{Group: "billing", Max: 2}, server, answer)
	if err != nil {
		t.Fatal(err)
	}
	want := []Received{
		{Stored: Stored{ID: server + "-00000000002c", Subject: "orders", ServerID: server, Sequence: 44, DueMs: 1800000000005,
			AcceptedUs: 1799999940000000, DispatchedUs: 1800000000005900, Body: []byte("bb"), Position: 2},
			Group: "billing", Node: server, Attempt: 1, Delivery: 11258999068426242},
		{Stored: Stored{ID: "o-9", Subject: "orders", ServerID: server, Sequence: 60, DueMs: 1800000000009, AcceptedUs: 1799999940000000,
			DispatchedUs: 1800000000009900, Body: []byte("x"), Properties: map[string]string{"trace": "7"}, Position: -1},
			Group: "billing", Node: server, Attempt: 2, Delivery: 4622945017495814144},
	}
	if !reflect.DeepEqual(rows, want) {
		t.Errorf("\n got %+v\nwant %+v", rows, want)
	}
	if _, err := decodePulled(&Pull{Max: 1}, server, answer); err == nil {
		t.Error("a reply with more rows than were asked for is taken")
	}
}

// result decodes the reply of a vector as the client does.
func result[T any](t *testing.T, name string) *T {
	t.Helper()
	payload, _ := readVectors(t).frame(t, name)
	answer, err := decodeReply(payload)
	if err != nil {
		t.Fatal(name, err)
	}
	into := new(T)
	if err := decodeResult(name, answer, into); err != nil {
		t.Fatal(name, err)
	}
	return into
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
}

func TestRepliesOfTheVectorsAreRead(t *testing.T) {
	const server = "5f3a9c0d2b71"
	receipt, second := Receipt(server+"-01a3185c5000-00000000002a"), Receipt(server+"-01a3185d3a60-000000000030")
	stored := Stored{ID: "o-1", Subject: "orders", Sequence: 42, ServerID: server, DueMs: 1800000000000, AcceptedUs: 1799999940000000,
		DispatchedUs: 1800000000000900, Body: []byte("hi"), Properties: map[string]string{}}
	stored.Position = 1
	equal(t, *result[ReadPage](t, "read reply"), ReadPage{ReadFound, 0, 4, 2, []Stored{stored}})
	equal(t, *result[ReadPage](t, "read behind the end reply"), ReadPage{ReadTooLarge, 0, 4, 4, []Stored{}})
	stored.Position = 0
	equal(t, *result[FoundPage](t, "find reply"), FoundPage{Messages: []Stored{stored}})
	equal(t, *result[SubjectPage](t, "subjects reply"), SubjectPage{[]string{"orders", "orders.eu"}, 40, false})
	equal(t, *result[Sought](t, "seek reply"), Sought{0, 0, 4})
	group := result[GroupState](t, "group reply")
	equal(t, *group, GroupState{Subject: "orders", Group: "billing", Position: 1, End: 4, Lag: 3, Leased: 1, Filtered: 2, Where: "price > 3",
		OldestMs: Some(int64(1800000000005))})
	policy := result[GroupPolicy](t, "policy reply")
	equal(t, policy.Policy, Policy{Attempts: Some(5), FirstMs: Some(int64(1000)), CapMs: Some(int64(60000))})
	if applies := policy.Applies; applies.Attempts != 5 || applies.FirstMs != 1000 || applies.Factor != 2 || applies.CapMs != 60000 {
		t.Errorf("%+v", applies)
	}
	letters := result[DeadLetterPage](t, "dead_letters reply")
	equal(t, *letters, DeadLetterPage{Left: 1, Letters: []DeadLetter{{ID: "o-1", Reason: "nacked", Text: "no such customer", Attempts: 5,
		DeadMs: 1800000060000, DueMs: 1800000045000, Sequence: 42, ServerID: server, Properties: map[string]string{}, BodyBytes: 2}}})
	equal(t, *result[Resent](t, "dead_letters resend reply"), Resent{Resent: 1, NextMs: 20})
	equal(t, *result[settledRow](t, "extend reply"), settledRow{Extended: 1})
	equal(t, *result[settledRow](t, "nack reply"), settledRow{Nacked: 1, Expired: 1})

	type sentRows struct {
		Results []sentRow `msgpack:"results"`
	}
	due := time.UnixMilli(1800000000000)
	again := result[sentRows](t, "send again reply").Results[0]
	equal(t, again.sent(false), &Sent{Receipt(server + "-01a3185c5000-000000000034"), "o-1", due, Some(true), receipt, Cancelled})
	equal(t, again.sent(true).Duplicate, (*bool)(nil)) // it can be the message of the attempt before
	prepared := result[sentRows](t, "prepare reply").Results[0]
	equal(t, prepared.sent(false), &Sent{Receipt: receipt, ID: "o-1", Due: due})

	type endedRows struct {
		Results []endedRow `msgpack:"results"`
	}
	committed := result[endedRows](t, "commit reply").Results
	equal(t, committed[0].ended(), Ended{nil, receipt, Committed, Receipt(server + "-01a3185c5000-000000000032"), 1800000000000, 50})
	if ended := committed[1].ended(); !errors.Is(ended.Err, TransactionEnded) || ended.Err.Outcome != RolledBack {
		t.Errorf("%+v", ended)
	}
	cancelled, err := result[numberedReply](t, "cancel columns reply").states(3, false)
	equal(t, err, nil)
	equal(t, cancelled.Outcome, []string{Cancelled, TooLate, Unknown})
	looked, err := result[numberedReply](t, "lookup columns reply").states(3, true)
	equal(t, err, nil)
	equal(t, looked, &NumberedStates{
		Outcome: []string{Cancelled, Delivered, Unknown}, DispatchedUs: []int64{0, 1800000000000900, 0}, Attempts: []int64{0, 1, 0},
		OriginalSequence: make([]int64, 3), RescheduledSequence: []int64{49, 0, 0}, RescheduledDueMs: []int64{1800000060000, 0, 0},
	})
	metrics := result[Metrics](t, "metrics reply")
	equal(t, metrics.Lateness["default"], Histogram{[]int64{500, 1000}, []int64{0, 1, 0}, 900, 0})
	equal(t, metrics.Subjects, []PendingSubject{{"orders", 2}})
	equal(t, *result[Token](t, "token reply"), Token{
		ID: "0123456789ab", Name: "shop", Roles: []string{"send"}, Subjects: []string{"orders*"}, CreatedMs: 1799999940000, Rate: 500,
		Text: "dst_0123456789ab_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8",
	})
	page := result[openPage](t, "transactions reply")
	equal(t, page.Transactions[0], OpenTransaction{second, "orders", 1800000000000, "shop", 1799999940000000, 1800000060000, 2, 15, PolicyRollback})
	equal(t, *page.Next, "1800000000000.2.48")
	equal(t, result[endedRows](t, "rollback reply").Results[0].ended(), Ended{Receipt: second, Outcome: RolledBack})

	type publishedRows struct {
		Results []Published `msgpack:"results"`
	}
	equal(t, result[publishedRows](t, "publish rows reply").Results[0], Published{server + "-000000000030", "orders", 4})
	columns, err := result[columnsReply](t, "publish columns reply").published(3)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, *columns, PublishedBatch{Positions: []int64{5, 6, 7}})
	hello := result[Server](t, "hello reply")
	equal(t, hello.DelayLevelsMs, []int64{1000, 5000, 10000})
}

func TestEveryErrorOfTheVectorsIsMatchedByItsName(t *testing.T) {
	seen := 0
	for _, frame := range readVectors(t).Frames {
		answer, err := decodeReply(payloadOf(t, unhex(t, frame.Hex)))
		if err != nil || answer.err == nil {
			continue
		}
		seen++
		fields := fromJSON(t, frame.Value).([]any)[2].(map[string]any)
		name := ErrorName(fields["error"].(string))
		wrapped := error(&NoReplyError{Operation: "x", Cause: answer.err})
		var named *Error
		if !errors.Is(wrapped, name) || !errors.As(wrapped, &named) || named.Name != name || errors.Is(wrapped, ErrorName("other")) {
			t.Errorf("%s: %v", frame.Name, wrapped)
		}
		if name == FilterInvalid && fields["line"] != nil && (named.Line != 1 || named.Column != 8 || named.Offset != 7) {
			t.Errorf("%+v", named)
		}
	}
	if seen < 40 {
		t.Error(seen)
	}
}

func TestRepliesBecomeStates(t *testing.T) {
	payload, _ := readVectors(t).frame(t, "lookup reply")
	answer, err := decodeReply(payload)
	if err != nil {
		t.Fatal(err)
	}
	var result struct {
		Results []stateRow `msgpack:"results"`
	}
	if err := decodeResult("lookup", answer, &result); err != nil {
		t.Fatal(err)
	}
	want := State{Receipt: "5f3a9c0d2b71-01a3185c5000-00000000002a", Outcome: Delivered, Subject: "orders", DueMs: 1800000000000,
		DispatchedUs: 1800000000000900, Attempts: 1, BrokerGroup: "default"}
	if got := result.Results[0].state(); got != want {
		t.Errorf("got %+v", got)
	}
	if got := result.Results[1].state(); got.Err == nil || got.Err.Name != ReceiptInvalid {
		t.Errorf("got %+v", got)
	}
}

func TestColumnsAreReadInAllForms(t *testing.T) {
	kinds := map[string]columnType{"i64": i64, "u32": u32, "u8": u8}
	for _, vector := range readVectors(t).Columns {
		var read column
		var rows []int64
		err := msgpack.Unmarshal(unhex(t, vector.Hex), &read)
		if err == nil {
			rows, err = read.rows(vector.Count, kinds[vector.Type])
		}
		if (err != nil) != (vector.Error != "") {
			t.Errorf("%s: %v, want %q", vector.Name, err, vector.Error)
		}
		if err != nil {
			continue
		}
		want := make([]int64, len(vector.Rows))
		for row := range want {
			want[row] = fromJSON(t, vector.Rows[row]).(int64)
		}
		if !reflect.DeepEqual(rows, want) {
			t.Errorf("%s: got %v, want %v", vector.Name, rows, want)
		}
	}
}

func TestColumnsComeBackAsTheyWere(t *testing.T) {
	for _, want := range [][]int64{{}, {7}, {7, 7, 7}, {7, 8, 9}, {7, 9, 8}, {-1, 0}, {math.MinInt64, math.MaxInt64}, {math.MaxInt64, math.MinInt64}} {
		data, err := msgpack.Marshal(encodeColumn(want, i64))
		if err != nil {
			t.Fatal(err)
		}
		var read column
		if err := msgpack.Unmarshal(data, &read); err != nil {
			t.Fatal(want, err)
		}
		if got, err := read.rows(len(want), i64); err != nil || !reflect.DeepEqual(got, want) {
			t.Error(want, got, err)
		}
	}
}

func TestRaggedBytesAreCut(t *testing.T) {
	for _, vector := range readVectors(t).Ragged {
		var lengths column
		if err := msgpack.Unmarshal(unhex(t, vector.Lengths), &lengths); err != nil {
			t.Fatal(vector.Name, err)
		}
		rows, err := cut(unhex(t, vector.Bytes), &lengths, vector.Count)
		if (err != nil) != (vector.Error != "") {
			t.Errorf("%s: %v, want %q", vector.Name, err, vector.Error)
		}
		for row := range rows {
			if hex.EncodeToString(rows[row]) != vector.Rows[row] {
				t.Errorf("%s: row %d is %x", vector.Name, row, rows[row])
			}
		}
	}
}

func TestReceiptsAndDerivedIDs(t *testing.T) {
	all := readVectors(t)
	for _, want := range all.Receipts {
		server, due, sequence, err := want.Receipt.Parts()
		if err != nil || server != want.ServerID || due != want.DueMs || sequence != want.Sequence {
			t.Error(want, server, due, sequence, err)
		}
		if NewReceipt(want.ServerID, want.DueMs, want.Sequence) != want.Receipt || DerivedID(want.ServerID, want.Sequence) != want.DerivedID {
			t.Error(want)
		}
	}
	for _, text := range all.BadReceipts {
		if _, _, _, err := text.Parts(); NameOf(err) != ReceiptInvalid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestDelaysBecomeDueTimesOfTheServersClock(t *testing.T) {
	for _, vector := range readVectors(t).Clocks {
		if got := (reading{sentUs: vector.SentUs, serverUs: vector.ServerUs}).dueMs(vector.NowUs, vector.DelayMs); got != vector.DueMs {
			t.Errorf("%+v: %d", vector, got)
		}
	}
}

func TestAReadingAgesAndASleepOfTheMachineShows(t *testing.T) {
	wall := time.UnixMilli(1800000000000)
	look := reading{sentUs: 1000, wall: wall}
	for _, row := range []struct {
		nowUs int64
		wall  time.Duration
		fresh bool
	}{
		{1000 + 59_000_000, 59 * time.Second, true},
		{1000 + 60_000_000, 60 * time.Second, false},
		{1000 + 1_000_000, 10 * time.Second, false},
		{1000 + 1_000_000, -10 * time.Second, false},
	} {
		if got := look.fresh(row.nowUs, wall.Add(row.wall)); got != row.fresh {
			t.Errorf("%+v: %v", row, got)
		}
	}
}

func TestMalformedValuesAreRefused(t *testing.T) {
	for _, vector := range readVectors(t).BadFrames {
		frame := vector.bytes(t)
		bad := vector.Error == MalformedFrame && len(frame) >= 4 && vector.Name != "no array" && vector.Name != "an array of two" &&
			!strings.Contains(vector.Name, "id ") && !strings.HasPrefix(vector.Name, "a key")
		if bad && checkValue(frame[4:]) == nil {
			t.Errorf("%s is taken", vector.Name)
		}
		if vector.Error == MalformedFrame {
			if _, err := decodeReply(frame[4:]); err == nil {
				t.Errorf("%s is taken as a reply", vector.Name)
			}
		}
	}
	for _, text := range []string{"c1", "ddffffffff", "dfffffffff", "c6ffffffff00", "dbffffffff", "d9", "dd00"} {
		if checkValue(unhex(t, text)) == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// errorRow is a row of the table of errors in PROTOCOL.md.
var errorRow = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| [^|]+ \\| .* \\| ([^|]+) \\|$")

func TestErrorsAreRepeatedWherePROTOCOLSaysSo(t *testing.T) {
	page, err := os.ReadFile("../../../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "\n## 10 Errors")
	table, _, ended := strings.Cut(table, "\n## 11 ")
	rows := errorRow.FindAllStringSubmatch(table, -1)
	if !found || !ended || len(rows) < 40 {
		t.Fatalf("the table has %d rows", len(rows))
	}
	for _, row := range rows {
		// Only the next pull is well after position_out_of_range: its caller has to know that messages are lost.
		said := strings.HasPrefix(row[2], "yes")
		if got := (&Error{Name: ErrorName(row[1])}).Again(); got != said {
			t.Errorf("%s: repeated is %v, the page says %q", row[1], got, row[2])
		}
	}
}

func TestTheLicenceIsThatOfTheRepository(t *testing.T) {
	ours, err := os.ReadFile("LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	if whole, err := os.ReadFile("../../../LICENSE"); err != nil || !bytes.Equal(ours, whole) {
		t.Error("the copy differs from the licence of the repository", err)
	}
}

func TestTheSampleOfREADMEIsBuiltByAnotherModule(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, behind, found := strings.Cut(string(page), "```go\nclient, err")
	sample, _, ended := strings.Cut(behind, "```")
	imported := regexp.MustCompile(`(?m)^import delayserver ".+"$`).FindString(string(page))
	if !found || !ended || imported == "" {
		t.Fatal("README.md has no sample")
	}
	sums, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	program := "package main\n\n" + imported + "\n\nimport (\n\"context\"\n\"fmt\"\n\"log\"\n\"time\"\n)\n\n" +
		"func main() {\nif err := run(context.Background()); err != nil {\nlog.Fatal(err)\n}\n}\n\n" +
		"func run(ctx context.Context) error {\nclient, err" + sample + "}\n"
	for name, text := range map[string]string{"go.mod": "module shop\n\ngo 1.19\n", "go.sum": string(sums), "main.go": program} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	commands := regexp.MustCompile(`(?m)^go mod edit .*$`).FindAllString(string(page), -1)
	if len(commands) != 2 {
		t.Fatal(commands)
	}
	commands = append(commands, "go build -mod=mod -o shop .")
	for _, line := range commands {
		words := strings.Fields(strings.ReplaceAll(line, "../path/to/delayserver/ops/clients/go", here))
		command := exec.Command(words[0], words[1:]...)
		command.Dir = folder
		if text, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, text)
		}
	}
}
